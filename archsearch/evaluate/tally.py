"""What an evaluation measures, summed per row or document, so that every figure has an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from archsearch.data.stream import IGNORED
from archsearch.evaluate.intervals import Estimate, mean_of_positions, share_of_positions, wilson
from archsearch.evaluate.score import Scores

OVERFLOW = 700.0  # of exp; a loss beyond it is that of no language model, and infinity is no JSON

Sums = NDArray[np.float64]
"""Per unit: its number, summed loss, hits and scored positions; `[units, 4]`."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure; `part` is a group of positions, "" stands for all. `count` is of the `unit` that was drawn."""

    part: str
    metric: str
    estimate: Estimate
    count: int


@dataclass
class Tally:
    """Sums per unit and group; a unit is a row unless a batch holds `units`.

    The metrics are those of training: `accuracy` of scored positions, `last_accuracy` of a row's last, `exact` the
    share of rows with all scored positions right, `loss` in nats and `perplexity`.
    """

    groups: tuple[str, ...]
    rows: int = 0
    exact: int = 0
    last: int = 0
    sums: dict[str, list[Sums]] = field(default_factory=dict)

    def add(self, batch: dict[str, Tensor], scores: Scores) -> None:
        """Add a batch and what the model gave its targets."""
        scored = batch["targets"].numpy() != IGNORED
        own = np.broadcast_to(np.arange(self.rows, self.rows + len(scored))[:, None], scored.shape)
        units = batch["units"].numpy() if "units" in batch else own
        self.rows += len(scored)
        self.exact += int((scores.hits == scored).all(-1).sum())
        self.last += int(scores.hits[:, -1].sum())
        for name, mask in self._masks(batch, scored):
            self.sums.setdefault(name, []).append(_sum(units[mask], scores.losses[mask], scores.hits[mask]))

    def figures(self, metrics: tuple[str, ...]) -> list[Figure]:
        """Return these metrics, each over all and then over each group that has any position."""
        return [figure for name in ("", *self.groups) for metric in metrics for figure in self._figures(name, metric)]

    def _masks(self, batch: dict[str, Tensor], scored: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        yield "", scored
        for number, name in enumerate(self.groups):
            mask = scored & (batch["groups"].numpy() == number)
            if mask.any():
                yield name, mask

    def _figures(self, part: str, metric: str) -> Iterator[Figure]:
        if metric in ("exact", "last_accuracy"):  # one trial a row
            if not part:
                right = self.exact if metric == "exact" else self.last
                yield Figure(part=part, metric=metric, estimate=wilson(right, self.rows), count=self.rows)
        elif part in self.sums:
            losses, hits, scored = _merge(self.sums[part])
            yield Figure(part=part, metric=metric, estimate=_estimate(metric, losses, hits, scored), count=len(scored))


def _estimate(metric: str, losses: Sums, hits: Sums, scored: Sums) -> Estimate:
    if metric == "accuracy":
        return share_of_positions(hits, scored)
    loss = mean_of_positions(losses, scored)
    if metric == "loss":
        return loss
    assert metric == "perplexity"
    value, low, high = loss
    return Estimate(
        perplexity(value), None if low is None else perplexity(low), None if high is None else perplexity(high)
    )


def perplexity(loss: float) -> float:
    """Return exp(loss), up to where it can be told."""
    return math.exp(min(loss, OVERFLOW))


def _sum(units: NDArray[np.int64], losses: NDArray[np.float64], hits: NDArray[np.bool_]) -> Sums:
    numbers, places = np.unique(units, return_inverse=True)
    columns = (np.bincount(places, weights=values) for values in (losses, hits, np.ones(len(units))))
    return np.stack([numbers, *columns], axis=1).astype(np.float64)


def _merge(pieces: list[Sums]) -> tuple[Sums, Sums, Sums]:
    """Return loss, hits and scored positions of each unit, wherever its positions were."""
    sums = np.concatenate(pieces)
    _, places = np.unique(sums[:, 0], return_inverse=True)
    losses, hits, scored = (np.bincount(places, weights=column).astype(np.float64) for column in sums.T[1:])
    return losses, hits, scored
