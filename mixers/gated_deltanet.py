"""Gated DeltaNet: a linear recurrence that overwrites what a key recalls (Yang et al., arXiv:2412.06464)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from archsearch.kernels.gated_delta_rule.op import BACKENDS
from archsearch.kernels.gated_delta_rule.product import gated_delta_product
from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
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
class GatedDeltaNetOptions(DecayOptions):
    """Head counts and shapes of a Gated DeltaNet mixer.

    `num_heads` counts queries and keys; `num_value_heads`, a multiple, the values and states (left out: as many).
    `gate` multiplies the output by `silu(g)`; `allow_negative_eigenvalues` doubles the writing strength to (0, 2).
    """

    num_heads: int = 4
    num_value_heads: int | None = None
    key_head_dim: int = 32
    value_head_dim: int = 64
    conv_width: int = 4
    gate: bool = True
    allow_negative_eigenvalues: bool = False

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        check_positive(num_heads=self.num_heads, key_head_dim=self.key_head_dim, value_head_dim=self.value_head_dim)
        check_positive(num_value_heads=self.value_heads, conv_width=self.conv_width)
        if self.value_heads % self.num_heads:
            got = f"num_heads={self.num_heads} and num_value_heads={self.value_heads}"
            raise ValueError(f"num_heads must divide num_value_heads; got {got}")

    @property
    def steps(self) -> int:
        """How many keys, values and writing strengths a token has."""
        return 1

    @property
    def value_heads(self) -> int:
        """How many heads of values, and so of states, there are."""
        return self.num_heads if self.num_value_heads is None else self.num_value_heads

    @property
    def key_width(self) -> int:
        """Channels of all queries, or of the keys of one step."""
        return self.num_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Channels of the values of one step, or of the output."""
        return self.value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass the short convolution: q, k and v."""
        return self.key_width + self.steps * (self.key_width + self.value_width)

    def widths(self) -> list[int]:
        """Return how many channels of the input projection q with k and v, a, b and g take."""
        return [self.conv_channels, self.value_heads, self.steps * self.value_heads, self.gate * self.value_width]

    def num_parameters(self, hidden_size: int) -> int:
        projections = hidden_size * (sum(self.widths()) + self.value_width)
        return projections + self.conv_channels * self.conv_width + 2 * self.value_heads + self.value_head_dim

    def state_size(self, hidden_size: int) -> int:
        return self.value_heads * self.key_head_dim * self.value_head_dim

    def cache_size(self, hidden_size: int, length: int) -> int:
        return self.conv_channels * (self.conv_width - 1)

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        projections = hidden_size * (sum(self.widths()) + self.value_width)
        recurrence = (2 * self.steps + 1) * self.state_size(hidden_size)  # recall S^T k, write k v^T; read S^T q
        return 2 * (projections + self.conv_channels * self.conv_width + recurrence)


@register("gated_deltanet", options=GatedDeltaNetOptions, letters="GR")
class GatedDeltaNet(Mixer):
    """Project, convolve, normalise q and k, recur, gate by `silu(g)`, RMSNorm per head, project out."""

    backends = BACKENDS

    def __init__(self, options: GatedDeltaNetOptions, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.in_proj = SplitLinear(hidden_size, options.widths())
        parts = options.key_width, options.steps * options.key_width, options.steps * options.value_width
        self.conv = ShortConv(parts, options.conv_width)
        self.decay = Decay(options.value_heads, options)
        self.norm = nn.RMSNorm(options.value_head_dim, eps=norm_eps)
        self.out_proj = nn.Linear(options.value_width, hidden_size, bias=False)
        self.reset_parameters(0.02, 0.02)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        options, state = self.options, state or {}
        qkv, a, b, g = self.in_proj(x)
        (q, k, v), taps = self.conv(qkv, state.get("conv"), cu_seqlens, self.backend_around)
        n = options.steps
        y, recurrent = gated_delta_product(
            q.unflatten(-1, (options.num_heads, -1)),
            k.unflatten(-1, (n, options.num_heads, -1)),
            v.unflatten(-1, (n, options.value_heads, -1)),
            self.decay(a)[1],
            b.unflatten(-1, (n, -1)).sigmoid() * (2 if options.allow_negative_eigenvalues else 1),
            scale=options.key_head_dim**-0.5,
            normalise=True,
            initial_state=state.get("recurrent"),
            cu_seqlens=cu_seqlens,
            backend=self.backend,
        )
        y = gated_rms_norm(
            y,
            self.norm.weight,
            self.norm.eps or 0.0,
            gate=g.unflatten(-1, (options.value_heads, -1)) if options.gate else None,
            backend=self.backend_around,
        )
        return self.out_proj(y), ({"recurrent": recurrent, "conv": taps} if cu_seqlens is None else None)
