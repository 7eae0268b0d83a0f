"""Name a winner that is not the luckiest seed: train the best again, and the base, with fresh seeds."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scipy.special import stdtrit

from archsearch.search.process import Report, run_trial
from archsearch.search.retry import run_to_its_end
from archsearch.search.rows import Row, objective_value
from archsearch.search.space import Space
from archsearch.search.study import trial_config
from archsearch.search.tasks import Objective

FRESH = 1000
"""Confirmation seeds are the study's seed plus this, and on from there."""

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % t-interval; one seed has no interval."""

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
        """Return the objective per seed."""
        found = {seed: objective_value(metrics, objective) for seed, metrics in self.metrics.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def estimate(self, objective: Objective) -> Estimate | None:
        """Return the objective's mean over the seeds."""
        return estimate(list(self.values(objective).values()))

    def difference(self, other: Confirmed, objective: Objective) -> Estimate | None:
        """Return the mean of the differences to another candidate on the same seeds."""
        own, others = self.values(objective), other.values(objective)
        return estimate([own[seed] - others[seed] for seed in own if seed in others])


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean and 95 % t-interval, None without values."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None, seeds=1)
    spread = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2)) * spread
    return Estimate(mean=mean, low=mean - half, high=mean + half, seeds=len(values))


def ranked(space: Space, rows: Sequence[Row]) -> list[Row]:
    """Return the feasible trained candidates, best first: by the first objective, ties by the later ones."""

    def merit(row: Row) -> tuple[float, ...]:
        values = zip(space.objectives, row.values(space), strict=True)
        return tuple(objective.better(value) for objective, value in values if value is not None)

    return sorted((row for row in rows if row.outcome == "completed"), key=merit, reverse=True)


def finalists(space: Space, rows: Sequence[Row]) -> list[Row]:
    """Return what is trained again: the top candidates, then the base; nothing where no confirmation is asked for."""
    if space.study.confirm.top == 0 or space.study.confirm.seeds == 0:
        return []
    best = [row for row in ranked(space, rows) if row.given != "base"][: space.study.confirm.top]
    base = [row for row in rows if row.given == "base" and row.description and row.description.architecture]
    return best + base


def confirm(
    space: Space,
    folder: Path,
    rows: Sequence[Row],
    *,
    seed: int,
    plugins: Sequence[str],
    watch: Callable[[Row, int, Report], None],
    stopped: Callable[[], bool],
    workers: int = 1,
) -> list[Confirmed] | None:
    """Train each finalist with each fresh seed, `workers` at a time, taking up what is there.

    Returns None where `stopped` came in between.
    """
    jobs = [(row, fresh) for row in finalists(space, rows) for fresh in fresh_seeds(space, seed)]
    reports: dict[tuple[int, int], Report] = {}
    leave, speak = threading.Event(), threading.Lock()

    def look(row: Row, fresh: int, report: Report) -> None:
        if leave.is_set():
            raise InterruptedError
        with speak:
            watch(row, fresh, report)

    def train(job: tuple[Row, int]) -> None:
        row, fresh = job
        if not stopped() and not leave.is_set():
            reports[row.number, fresh] = _train_again(space, folder, row, fresh, plugins, look, stopped)

    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(train, jobs))
        except BaseException:  # Ctrl-C ends the processes that the other threads wait for
            leave.set()
            raise
    if len(reports) < len(jobs):
        return None
    return [_confirmed(row, reports) for row in finalists(space, rows)]


def _confirmed(row: Row, reports: Mapping[tuple[int, int], Report]) -> Confirmed:
    own = {seed: report for (number, seed), report in sorted(reports.items()) if number == row.number}
    return Confirmed(
        row=row,
        metrics={seed: report["metrics"] for seed, report in own.items() if report["outcome"] == "completed"},
        failures={seed: str(report["reason"]) for seed, report in own.items() if report["outcome"] != "completed"},
    )


def fresh_seeds(space: Space, seed: int) -> list[int]:
    """Return the seeds that the search itself has not used."""
    return [seed + FRESH + i for i in range(space.study.confirm.seeds)]


def winner(space: Space, confirmed: Sequence[Confirmed]) -> Confirmed | None:
    """Return the feasible candidate with the best mean of the first objective, ties go by the later ones."""

    def merit(candidate: Confirmed) -> tuple[float, ...]:
        estimates = [(objective, candidate.estimate(objective)) for objective in space.objectives]
        return tuple(objective.better(found.mean) for objective, found in estimates if found)

    able = [x for x in confirmed if x.row.outcome == "completed" and x.metrics]
    return max(able, key=merit, default=None)


def _train_again(
    space: Space,
    folder: Path,
    row: Row,
    seed: int,
    plugins: Sequence[str],
    watch: Callable[[Row, int, Report], None],
    stopped: Callable[[], bool],
) -> Report:
    assert row.description is not None
    config = trial_config(space, row.description.architecture, seed, plugins, budget=False)
    own = folder / "trials" / f"confirm-{row.number:04d}-seed{seed}"
    return run_to_its_end(
        lambda: run_trial(
            own,
            config,
            timeout=space.study.timeout_per_trial,
            watch=lambda report: watch(row, seed, report),
        ),
        own,
        retries=space.study.retries,
        stopped=stopped,
    )
