"""What a study will cost, and what that estimate rests on."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.search.rows import Row
from archsearch.search.rungs import NONE
from archsearch.search.space import Space


def upper_bound(space: Space, trials: int) -> str:
    """Return the tokens that a study trains on at most, in words, before anything has been timed."""
    each = sum(task.tokens for task in space.tasks.values())
    runs = confirmations(space)
    tasks = " + ".join(f"{name} {_count(task.tokens)}" for name, task in space.tasks.items())
    return (
        f"at most {trials} candidates and {runs} confirmation runs of {_count(each)} tokens ({tasks}): "
        f"{_count((trials + runs) * each)} tokens; illegal, refused and repeated candidates cost none"
        f"{'' if space.study.pruner == NONE else ', pruned ones a part'}"
    )


def time_left(space: Space, rows: Sequence[Row], trials: int) -> str:
    """Return the time that is left at most, as if none were pruned, from the trials that were trained to the end."""
    timed = [_seconds(row) for row in rows if row.outcome == "completed"]
    if not timed:
        return "time left: known after the first trial"
    distinct = sum(row.outcome not in ("duplicate", "waiting", "running") for row in rows)
    runs = max(0, trials - distinct) + confirmations(space)
    mean = sum(timed) / len(timed)
    speed = sum(task.tokens for task in space.tasks.values()) / mean
    basis = f"{len(timed)} trained so far, {mean:.1f} s and {speed:,.0f} tokens/s each"
    return f"at most {_duration(runs * mean)} left (from {basis}; {runs} runs to go)"


def confirmations(space: Space) -> int:
    """Return how many runs with fresh seeds there are at most."""
    again = space.study.confirm
    return (again.top + 1) * again.seeds if again.top else 0


def _seconds(row: Row) -> float:
    measurement = row.result.measurement
    return sum(row.result.seconds.values()) + (measurement["seconds"] if measurement else 0.0)


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
