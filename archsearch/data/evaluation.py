"""What a data module is evaluated on, and the names that the metrics get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archsearch.data.stream import Batch

EvalBatches = tuple[Callable[[int], Batch], int]
"""The function that makes batch i of an evaluation set, and how many batches there are."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation set. Its metrics are called METRIC/[PART/]LENGTH[/VARIANT], and of a group of positions .../GROUP.

    `part` is a part of a mixture, `variant` what differs from training besides the length. The `standard` one is that
    of the training conditions, whose metrics are also called METRIC[/PART]. `metrics` are those besides loss,
    perplexity and accuracy that mean something here. Where there are `groups`, a batch holds `groups` `[B, T]`: the
    number of each position's group, -1 for none.
    """

    length: int
    part: str = ""
    variant: str = ""
    standard: bool = False
    metrics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What follows the metric."""
        return "/".join(filter(None, [self.part, str(self.length), self.variant]))


@dataclass(frozen=True)
class Buckets:
    """Ranges that a number falls in, each from its edge up to the next one; `names` say the edge: `distance_16`."""

    label: str
    edges: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, in order."""
        return tuple(f"{self.label}_{edge}" for edge in self.edges)

    def below(self, limit: int) -> Buckets:
        """Return the buckets that numbers below `limit` can fall in."""
        return Buckets(self.label, tuple(edge for edge in self.edges if edge < limit))

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each number's bucket; all must be at least the first edge."""
        return np.searchsorted(self.edges, numbers, side="right").astype(np.int64) - 1
