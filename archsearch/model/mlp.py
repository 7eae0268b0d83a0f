"""The feed-forward half of a block."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, no biases (Shazeer, arXiv:2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        """Draw fresh weights: normal(0, init_std), the projection back normal(0, output_std)."""
        nn.init.normal_(self.gate_up_proj.weight, std=init_std)
        nn.init.normal_(self.down_proj.weight, std=output_std)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        y: Tensor = self.down_proj(functional.silu(gate) * up)
        return y
