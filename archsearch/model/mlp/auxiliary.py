"""Losses that an MLP adds to the training loss: collected around a forward pass, so that no module keeps any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor


class AuxiliaryLosses:
    """The weighted losses of one forward pass over the tokens that are `scored` (`[B x T]` bool, None for none)."""

    def __init__(self, scored: Tensor | None) -> None:
        self.scored = scored
        self.losses: list[Tensor] = []

    def total(self) -> Tensor | None:
        """Return the sum over all layers, None where no layer has such a loss."""
        return sum(self.losses[1:], self.losses[0]) if self.losses else None


_collecting: list[AuxiliaryLosses] = []
"""The contexts that are open, innermost last. A plain list: torch.compile cannot trace through a ContextVar."""


@contextmanager
def collect_auxiliary_losses(scored: Tensor | None) -> Iterator[AuxiliaryLosses]:
    """Collect what the MLPs of a model record in a forward pass inside this context, and in none around it."""
    losses = AuxiliaryLosses(scored)
    _collecting.append(losses)
    try:
        yield losses
    finally:
        _collecting.pop()


def innermost() -> AuxiliaryLosses | None:
    """Return what is being collected, None where nobody does."""
    return _collecting[-1] if _collecting else None


def record_auxiliary_loss(weight: float, loss: Callable[[Tensor], Tensor]) -> None:
    """Add weight x `loss(scored)` to what is being collected; nothing is computed where nobody collects."""
    collected = innermost()
    if collected is not None and collected.scored is not None and weight:
        collected.losses.append(weight * loss(collected.scored))
