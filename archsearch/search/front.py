"""The Pareto front of a study: what no other candidate matches in every objective and beats in one."""

from __future__ import annotations

from collections.abc import Sequence

from archsearch.search.rows import Row
from archsearch.search.space import Space

Merit = tuple[float, ...]
"""One number per objective, more is better."""


def merit(space: Space, row: Row) -> Merit:
    """Return a trained candidate's values, turned so that more is better."""
    values = zip(space.objectives, row.values(space), strict=True)
    return tuple(objective.better(value) for objective, value in values if value is not None)


def ranked(space: Space, rows: Sequence[Row]) -> list[Row]:
    """Return the feasible trained candidates, best first: by the first objective, ties by the later ones."""
    return sorted((row for row in rows if row.outcome == "completed"), key=lambda row: merit(space, row), reverse=True)


def front(space: Space, rows: Sequence[Row]) -> list[Row]:
    """Return the ranked candidates that are on the front; none where a single objective leaves no front."""
    if len(space.objectives) == 1:
        return []
    order = ranked(space, rows)
    return [order[i] for i in non_dominated([merit(space, row) for row in order])]


def non_dominated(merits: Sequence[Merit]) -> list[int]:
    """Return the places of what nothing else dominates, the best by the first number first; equals dominate nobody."""
    kept: list[int] = []
    for i in sorted(range(len(merits)), key=lambda i: merits[i], reverse=True):
        if not any(_dominates(merits[j], merits[i]) for j in kept):  # only what comes before can, or is dominated too
            kept.append(i)
    return kept


def _dominates(one: Merit, other: Merit) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
