"""Name a winner that is not the luckiest seed: which candidates are trained again, and what their seeds say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from archsearch.search.front import front, non_dominated, ranked
from archsearch.search.measures import objective_figure
from archsearch.search.rows import Row, objective_value
from archsearch.search.space import Space
from archsearch.search.tasks import Objective

FRESH = 1000
"""Confirmation seeds are the study's seed plus this, and on from there."""

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % t-interval; one seed has no interval.

    A measure has been taken once, without seeds, and its interval is the measurement's.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def is_tie(self) -> bool:
        """Whether a difference could as well be none."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """One candidate trained with fresh seeds: metrics per task and seed, and why a seed is missing."""

    row: Row
    metrics: Mapping[int, Mapping[str, Mapping[str, float]]]
    failures: Mapping[int, str]

    def values(self, objective: Objective) -> dict[int, float]:
        """Return the objective per seed; a measure has none."""
        found = {seed: objective_value(metrics, objective, {}) for seed, metrics in self.metrics.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def estimate(self, objective: Objective) -> Estimate | None:
        """Return the objective's mean over the seeds."""
        if objective.measure:
            return _measured(self.row, objective)
        return estimate(list(self.values(objective).values()))

    def difference(self, other: Confirmed, objective: Objective, comparisons: int = 1) -> Estimate | None:
        """Return the mean of the differences to another candidate on the same seeds.

        It is one of so many `comparisons` whose intervals hold together: whoever looks at the best of several looks at
        the luckiest, too.
        """
        if objective.measure:
            return _apart(self.estimate(objective), other.estimate(objective))
        own, others = self.values(objective), other.values(objective)
        return estimate([own[seed] - others[seed] for seed in own if seed in others], comparisons)


def estimate(values: Sequence[float], comparisons: int = 1) -> Estimate | None:
    """Return mean and t-interval, None without values; `comparisons` such hold together with 95 % (Bonferroni)."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None, seeds=1)
    spread = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 1 - (1 - CONFIDENCE) / 2 / comparisons)) * spread
    return Estimate(mean=mean, low=mean - half, high=mean + half, seeds=len(values))


def _measured(row: Row, objective: Objective) -> Estimate | None:
    if (found := objective_figure(row.result.figures, objective)) is None:
        return None
    value, low, high = found
    return Estimate(mean=value, low=low, high=high, seeds=0)


def _apart(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """Return the difference of two measures, its interval from theirs (Zou and Donner 2008, for independent ones)."""
    if one is None or other is None or None in (one.low, one.high, other.low, other.high):
        return None
    mean = one.mean - other.mean
    low = math.hypot(one.mean - one.low, other.high - other.mean)  # type: ignore[operator]
    high = math.hypot(one.high - one.mean, other.mean - other.low)  # type: ignore[operator]
    return Estimate(mean=mean, low=mean - low, high=mean + high, seeds=0)


def finalists(space: Space, rows: Sequence[Row]) -> list[Row]:
    """Return what is trained again: the top candidates, then the base; nothing where no confirmation is asked for.

    The top ones are the best by the first objective, of all or (`study.confirm.among`) of the front.
    """
    if space.study.confirm.top == 0 or space.study.confirm.seeds == 0:
        return []
    able = front(space, rows) if space.study.confirm.among == "front" else ranked(space, rows)
    best = [row for row in able if row.given != "base"][: space.study.confirm.top]
    base = [row for row in rows if row.given == "base" and row.description and row.description.architecture]
    return best + base


def fresh_seeds(space: Space, seed: int) -> list[int]:
    """Return the seeds that the search itself has not used."""
    return [seed + FRESH + i for i in range(space.study.confirm.seeds)]


def winner(space: Space, confirmed: Sequence[Confirmed]) -> Confirmed | None:
    """Return the feasible candidate with the best mean of the first objective, ties go by the later ones."""
    return max(_able(confirmed), key=lambda candidate: _merit(space, candidate), default=None)


def comparisons(confirmed: Sequence[Confirmed]) -> int:
    """Return how many candidates are held against the base, any of which might have come out best."""
    return max(1, sum(x.row.given != "base" for x in confirmed))


def ties(space: Space, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    """Return what these seeds cannot tell from the winner by the first objective, the base too.

    As many comparisons as there are others hold together: then nothing passes for better than what is truly best.
    """
    best, objective = winner(space, confirmed), space.objectives[0]
    if best is None:
        return []
    others = [x for x in _able(confirmed) if x is not best]
    apart = [(other, best.difference(other, objective, max(1, len(others)))) for other in others]
    return [other for other, difference in apart if difference is None or difference.is_tie]


def confirmed_front(space: Space, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    """Return which of the confirmed candidates are on the front of their means."""
    able = _able(confirmed)
    return [able[i] for i in non_dominated([_merit(space, x) for x in able])] if len(space.objectives) > 1 else []


def _able(confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    return [x for x in confirmed if x.row.outcome == "completed" and x.metrics]


def _merit(space: Space, candidate: Confirmed) -> tuple[float, ...]:
    estimates = [(objective, candidate.estimate(objective)) for objective in space.objectives]
    return tuple(objective.better(found.mean) for objective, found in estimates if found)
