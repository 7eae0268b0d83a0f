"""What the mixers share: their contract, the short convolution and the decay gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends
from archsearch.kernels.packing import check_cu_seqlens
from archsearch.kernels.short_conv.op import short_conv
from archsearch.registry import MixerOptions

State = dict[str, Tensor]
"""What one layer remembers of a batch of sequences, batch first; `recurrent`, `conv`, `key`, `value`."""


class Mixer(nn.Module):
    """The contract of a mixer: causal, any length, resumable from its state, blind across packed documents."""

    backends: ClassVar[Backends]
    no_weight_decay: ClassVar[frozenset[str]] = frozenset()
    out_proj: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.backend = "auto"

    @property
    def backend_around(self) -> str:
        """The backend of what stands around the recurrence: the reference where that is what the mixer shall run."""
        return REFERENCE if self.backend == REFERENCE else "auto"

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        """Mix `x` `[B, T, D]` over time into `[B, T, D]`; `state` is what an earlier call returned.

        With `cu_seqlens` `[documents + 1]`, B is 1, every document starts from nothing and no state is returned.
        """
        raise NotImplementedError

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        """Draw fresh weights: linear maps normal(0, init_std), the output projection normal(0, output_std)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=output_std if module is self.out_proj else init_std)
            elif module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()


class SplitLinear(nn.Linear):
    """A linear map without bias whose output comes in parts.

    On a GPU it makes a few channels more than there are where their number is no multiple of 8: matrix products on
    rows that do not start at 16 bytes take two and a half times as long (one H200, bfloat16: 0.79 ms against 0.31 for
    32768 x 1024 by 1024 x 2900 against 2904).
    """

    def __init__(self, in_features: int, widths: Sequence[int]) -> None:
        super().__init__(in_features, sum(widths), bias=False)
        self.widths = list(widths)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return one tensor `[..., width]` per part."""
        more = -self.out_features % 8 if x.is_cuda else 0
        weight = functional.pad(self.weight, (0, 0, 0, more)) if more else self.weight
        return torch.split(functional.linear(x, weight), [*self.widths, *[more] * (more > 0)], dim=-1)[
            : len(self.widths)
        ]


class ShortConv(nn.Module):
    """Causal depthwise convolution over time, then SiLU unless told otherwise; the output comes in parts."""

    def __init__(self, parts: Sequence[int], width: int, *, bias: bool = False, silu: bool = True) -> None:
        super().__init__()
        self.parts, self.silu = list(parts), silu
        channels = sum(parts)
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as `nn.Conv1d` does: uniform within 1 / sqrt(width)."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, x: Tensor, taps: Tensor | None = None, cu_seqlens: Tensor | None = None, backend: str = "auto"
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Filter `x` `[B, T, C]`; returns the parts of the output and the taps `[B, W - 1, C]` to go on from."""
        return short_conv(
            x, self.weight, self.bias, widths=self.parts, silu=self.silu, taps=taps, cu_seqlens=cu_seqlens,
            backend=backend,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecayOptions(MixerOptions):
    """The ranges that the gates of a recurrence are drawn from."""

    alpha_init_min: float = 0.0
    alpha_init_max: float = 16.0
    dt_init_min: float = 1e-3
    dt_init_max: float = 1e-1
    dt_init_floor: float = 1e-4

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        if not 0 <= self.alpha_init_min <= self.alpha_init_max or self.alpha_init_max == 0:
            got = f"{self.alpha_init_min} and {self.alpha_init_max}"
            raise ValueError(f"0 <= alpha_init_min <= alpha_init_max and alpha_init_max > 0 must hold; got {got}")
        if not 0 < self.dt_init_min <= self.dt_init_max:
            got = f"{self.dt_init_min} and {self.dt_init_max}"
            raise ValueError(f"0 < dt_init_min <= dt_init_max must hold; got {got}")
        if self.dt_init_floor < 0:
            raise ValueError(f"dt_init_floor must not be negative; got {self.dt_init_floor}")


@dataclass(frozen=True, kw_only=True)
class NonlinearOptions(MixerOptions):
    """What the recurrences have in common that multiply their state by a weight inside a nonlinearity.

    `conv_width: null` leaves out the short convolution, `activation: none` the SiLU behind it, `gradient_clip: null`
    the clipping of the gradient carried through time. Weights start as `weight_init_gain` times the identity, or
    times an orthogonal matrix of each head's own.
    """

    conv_width: int | None = 4
    activation: Literal["silu", "none"] = "silu"
    weight_init: Literal["identity", "orthogonal"] = "identity"
    weight_init_gain: float = 1.0
    gradient_clip: float | None = 1.0

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        if self.conv_width is not None:
            check_positive(conv_width=self.conv_width)
        if self.gradient_clip is not None:
            check_positive(gradient_clip=self.gradient_clip)

    def short_conv(self, parts: Sequence[int]) -> ShortConv | None:
        """Return the filter of parts of so many channels, if there is to be one."""
        return ShortConv(parts, self.conv_width, silu=self.activation == "silu") if self.conv_width else None

    @torch.no_grad()
    def draw_weight(self, weight: Tensor) -> None:
        """Fill a weight `[N, D, D]` as it is to start."""
        if self.weight_init == "orthogonal":
            for matrix in weight:
                nn.init.orthogonal_(matrix)
        else:
            weight.copy_(torch.eye(weight.shape[-1], device=weight.device))
        weight *= self.weight_init_gain


class Decay(nn.Module):
    """The gate `exp(-alpha softplus(a + beta))`, one alpha and beta per head, computed in at least float32.

    alpha is drawn uniform in (alpha_init_min, alpha_init_max] and kept as its log; beta is the inverse softplus of
    dt, which is log-uniform in [dt_init_min, dt_init_max] and at least dt_init_floor.
    """

    def __init__(self, num_heads: int, options: DecayOptions) -> None:
        super().__init__()
        self.options = options
        self.alpha_log = nn.Parameter(torch.empty(num_heads))
        self.beta = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        options = self.options
        fraction = 1 - torch.rand_like(self.alpha_log)  # in (0, 1]: alpha = 0 would have no log
        self.alpha_log.copy_(torch.log(options.alpha_init_min * (1 - fraction) + fraction * options.alpha_init_max))
        log_dt = torch.empty_like(self.beta).uniform_(math.log(options.dt_init_min), math.log(options.dt_init_max))
        dt = log_dt.exp().clamp(min=options.dt_init_floor)
        self.beta.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return dt = softplus(a + beta) and log f = -alpha dt, both shaped as `a` `[..., N]`."""
        a = a.to(torch.promote_types(a.dtype, torch.float32))
        dt = functional.softplus(a + self.beta.to(a.dtype))
        return dt, -self.alpha_log.to(a.dtype).exp() * dt


def check_positive(**values: int | float) -> None:
    """Raise ValueError for the first value that is not above 0."""
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive; got {value}")


def check_head_counts(num_heads: int, counts: Mapping[str, int]) -> None:
    """Raise ValueError unless the heads of each part can be shared among `num_heads` states, one part having all."""
    if any(count < 1 or num_heads % count for count in counts.values()) or max(counts.values()) < num_heads:
        rule = "each head count must divide num_heads, and one must equal it"
        raise ValueError(f"{rule}; got num_heads={num_heads}, {dict(counts)}")


def check_packed(x: Tensor, state: State | None, cu_seqlens: Tensor | None) -> None:
    """Raise ValueError where bounds do not fit `x` `[1, T, D]`, or come with a state: documents start from nothing."""
    if cu_seqlens is None:
        return
    if state is not None:
        raise ValueError("packed documents start from nothing: give either state or cu_seqlens")
    check_cu_seqlens(cu_seqlens, x)
