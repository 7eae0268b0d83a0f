"""What the MLPs share: their contract."""

from __future__ import annotations

from torch import Tensor, nn


class MLP(nn.Module):
    """The contract of an MLP: every token by itself, so packing, splitting and batching change nothing."""

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether it adds to the training loss."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` `[B, T, D]` into `[B, T, D]`."""
        raise NotImplementedError

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        """Draw fresh weights: normal(0, init_std), the projections back normal(0, output_std)."""
        raise NotImplementedError
