"""Losses that an MLP adds to the training loss: collected around a forward pass, so that no module keeps any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor


class AuxiliaryLosses:
    """The weighted losses of one forward pass, over the tokens that are `scored` (`[B x T]` bool)."""

    def __init__(self, scored: Tensor) -> None:
        self.scored = scored
        self.losses: list[Tensor] = []

    def total(self) -> Tensor | None:
        """Return the sum over all layers, None where no layer has such a loss."""
        return sum(self.losses[1:], self.losses[0]) if self.losses else None


_collected: ContextVar[AuxiliaryLosses | None] = ContextVar("auxiliary losses", default=None)


@contextmanager
def collect_auxiliary_losses(scored: Tensor) -> Iterator[AuxiliaryLosses]:
    """Collect what the MLPs of a model record in a forward pass inside this context."""
    losses = AuxiliaryLosses(scored)
    token = _collected.set(losses)
    try:
        yield losses
    finally:
        _collected.reset(token)


def record_auxiliary_loss(weight: float, loss: Callable[[Tensor], Tensor]) -> None:
    """Add weight x `loss(scored)` to what is being collected; nothing is computed where nobody collects."""
    collected = _collected.get()
    if collected is not None and weight:
        collected.losses.append(weight * loss(collected.scored))
