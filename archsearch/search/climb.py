"""What a trial's report says of its way up the rungs."""

from __future__ import annotations

from collections.abc import Mapping

from archsearch.search.process import Report
from archsearch.search.rows import objective_value
from archsearch.search.rungs import Rung, places
from archsearch.search.space import Space


class PrunedError(Exception):
    """Why the pruner has ended a trial."""


def reached(space: Space, report: Report) -> list[Rung]:
    """Return the rungs that a trial's report tells of, in order."""
    seen = {(found["task"], found["step"]): found["metrics"] for found in report.get("rungs", [])}
    return [
        Rung(
            task=place.task,
            number=place.number,
            tokens=place.tokens,
            values=_values(space, report, place.task, seen[place.task, place.step]),
        )
        for place in places(space)
        if (place.task, place.step) in seen
    ]


def _values(space: Space, report: Report, task: str, metrics: Mapping[str, float]) -> list[float | None]:
    """Return the objectives as they were known at a rung: the task's own there, those of earlier tasks at their end.

    What a candidate costs is known from the start.
    """
    names = list(space.tasks)
    earlier = names[: names.index(task)]
    known = {name: found for name, found in report.get("metrics", {}).items() if name in earlier}
    figures = report.get("figures", {})
    return [objective_value({**known, task: metrics}, objective, figures) for objective in space.objectives]


def trained_tokens(space: Space, report: Report) -> int:
    """Return the tokens that a trial has been trained on, as if at full length."""
    done = report.get("metrics", {})
    tokens = sum(space.tasks[name].tokens for name in done)
    for name, task in space.tasks.items():
        steps = [found["step"] for found in report.get("rungs", []) if found["task"] == name]
        if report.get("phase") == f"train {name}":
            steps.append((report.get("progress") or {}).get("step", 0))
        if name not in done and steps:
            tokens += task.tokens * max(steps) // task.steps
    return tokens
