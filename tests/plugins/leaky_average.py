"""A mixer as a third party writes one: a leaky average over time, in a package of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archsearch.kernels.dispatch import Backends
from archsearch.kernels.packing import pad, unpad
from archsearch.mixers.common import Mixer, State, check_packed
from archsearch.registry import MixerOptions, register


@dataclass(frozen=True, kw_only=True)
class LeakyAverageOptions(MixerOptions):
    keep: float = 0.9

    def check(self, hidden_size: int) -> None:
        if not 0 <= self.keep < 1:
            raise ValueError(f"0 <= keep < 1 must hold; got {self.keep}")

    def num_parameters(self, hidden_size: int) -> int:
        return hidden_size**2

    def state_size(self, hidden_size: int) -> int:
        return hidden_size

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        return 2 * hidden_size**2


@register("leaky_average", options=LeakyAverageOptions, letters="L")
class LeakyAverage(Mixer):
    backends = Backends("leaky_average")

    def __init__(self, options: LeakyAverageOptions, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.keep = options.keep
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        self.backends.choose(self.backend, x)
        rows = x
        if cu_seqlens is not None:
            rows = pad(x, cu_seqlens)
        rows = rows.to(torch.promote_types(x.dtype, torch.float32))
        average, outputs = state["recurrent"] if state else torch.zeros_like(rows[:, 0]), []
        for t in range(rows.shape[1]):
            average = self.keep * average + (1 - self.keep) * rows[:, t]
            outputs.append(average)
        y = torch.stack(outputs, dim=1).to(x.dtype)
        if cu_seqlens is not None:
            return self.out_proj(unpad(y, cu_seqlens)), None
        return self.out_proj(y), {"recurrent": average}
