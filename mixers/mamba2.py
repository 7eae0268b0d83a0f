"""Mamba-2: a linear recurrence with one decay per head and step (Dao and Gu, arXiv:2405.21060)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
from archsearch.kernels.ssd.op import BACKENDS, ssd
from archsearch.mixers.common import (
    Decay,
    DecayOptions,
    Mixer,
    ShortConv,
    SplitLinear,
    State,
    check_packed,
    check_positive,
)
from archsearch.registry import register


@dataclass(frozen=True, kw_only=True)
class Mamba2Options(DecayOptions):
    """Head counts and shapes of a Mamba-2 mixer: the inner width is num_heads x head_dim.

    Each head keeps `state_dim` numbers per channel; the heads of one of `num_groups` groups share B and C.
    """

    num_heads: int = 4
    head_dim: int = 64
    state_dim: int = 32
    num_groups: int = 1
    conv_width: int = 4

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        check_positive(num_heads=self.num_heads, head_dim=self.head_dim, state_dim=self.state_dim)
        check_positive(num_groups=self.num_groups, conv_width=self.conv_width)
        if self.num_heads % self.num_groups:
            got = f"num_groups={self.num_groups} and num_heads={self.num_heads}"
            raise ValueError(f"num_groups must divide num_heads; got {got}")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass the short convolution: x, B and C."""
        return self.inner + 2 * self.num_groups * self.state_dim

    def widths(self) -> list[int]:
        """Return how many channels of the input projection z, x with B and C, and dt take."""
        return [self.inner, self.conv_channels, self.num_heads]

    def num_parameters(self, hidden_size: int) -> int:
        projections = hidden_size * (sum(self.widths()) + self.inner)
        per_head = 3 * self.num_heads  # alpha, beta, D
        return projections + self.conv_channels * (self.conv_width + 1) + per_head + self.inner

    def state_size(self, hidden_size: int) -> int:
        return self.inner * self.state_dim

    def cache_size(self, hidden_size: int, length: int) -> int:
        return self.conv_channels * (self.conv_width - 1)

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        projections = hidden_size * (sum(self.widths()) + self.inner)
        recurrence = 2 * self.state_size(hidden_size)  # write B x^T, read h^T C
        return 2 * (projections + self.conv_channels * self.conv_width + recurrence)


@register("mamba2", options=Mamba2Options, letters="S")
class Mamba2(Mixer):
    """Project, convolve, recur, add `D x`, gate by `silu(z)`, RMSNorm over all heads, project out."""

    backends = BACKENDS

    def __init__(self, options: Mamba2Options, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.in_proj = SplitLinear(hidden_size, options.widths())
        shared = options.num_groups * options.state_dim
        self.conv = ShortConv([options.inner, shared, shared], options.conv_width, bias=True)
        self.decay = Decay(options.num_heads, options)
        self.skip = nn.Parameter(torch.ones(options.num_heads))
        self.norm = nn.RMSNorm(options.inner, eps=norm_eps)
        self.out_proj = nn.Linear(options.inner, hidden_size, bias=False)
        self.reset_parameters(0.02, 0.02)

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        super().reset_parameters(init_std, output_std)
        nn.init.ones_(self.skip)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        options, state = self.options, state or {}
        z, xbc, dt = self.in_proj(x)
        (values, b, c), taps = self.conv(xbc, state.get("conv"), cu_seqlens, self.backend_around)
        values = values.unflatten(-1, (options.num_heads, -1))
        b, c = (part.unflatten(-1, (options.num_groups, -1)) for part in (b, c))
        dt, log_decay = self.decay(dt)
        y, recurrent = ssd(
            values,
            dt,
            log_decay,
            b,
            c,
            initial_state=state.get("recurrent"),
            cu_seqlens=cu_seqlens,
            keep_state=cu_seqlens is None,
            backend=self.backend,
        )
        y = gated_rms_norm(
            y,
            self.norm.weight,
            self.norm.eps or 0.0,
            gate=z.unflatten(-1, (options.num_heads, -1)),
            skip=values,
            skip_weight=self.skip[:, None].expand(-1, options.head_dim),
            backend=self.backend_around,
        )
        return self.out_proj(y), ({"recurrent": recurrent, "conv": taps} if cu_seqlens is None else None)
