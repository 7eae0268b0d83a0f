"""The gated MLP of most language models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from archsearch.config import ConfigError
from archsearch.kernels.swiglu.op import swiglu
from archsearch.mlp_registry import MLPOptions, register_mlp
from archsearch.model.mlp.common import MLP


@dataclass(frozen=True, kw_only=True)
class SwiGLUOptions(MLPOptions):
    """The width between the projections; left out, 8/3 of the hidden size, rounded up to a multiple of 64."""

    intermediate_size: int

    @classmethod
    def defaults(cls, hidden_size: int) -> Mapping[str, int]:
        return {"intermediate_size": -(-8 * hidden_size // 3) // -64 * -64}

    def check(self, hidden_size: int) -> None:
        if self.intermediate_size <= 0:
            raise ConfigError(f"intermediate_size: must be positive; got {self.intermediate_size}")

    def num_parameters(self, hidden_size: int) -> int:
        return 3 * hidden_size * self.intermediate_size

    def shape(self) -> str:
        return f"{self.intermediate_size}"


@register_mlp("swiglu", options=SwiGLUOptions)
class SwiGLU(MLP):
    """`down(silu(gate(x)) * up(x))`, no biases (Shazeer, arXiv:2002.05202)."""

    def __init__(self, options: SwiGLUOptions, hidden_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * options.intermediate_size, bias=False)
        self.down_proj = nn.Linear(options.intermediate_size, hidden_size, bias=False)

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        nn.init.normal_(self.gate_up_proj.weight, std=init_std)
        nn.init.normal_(self.down_proj.weight, std=output_std)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(swiglu(self.gate_up_proj(x)))
        return y
