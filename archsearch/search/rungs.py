"""The rungs of a study: where on its way a candidate is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archsearch.config import Where

if TYPE_CHECKING:
    from archsearch.search.space import Space

NONE, SEVERAL = "none", "pareto"
"""No pruner, and the one that takes several objectives."""


RUNGS = "rungs"
"""What a trial has on record of them."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The `number`th rung of a task, from 1: after `step` of its optimizer steps, and after `tokens` in all.

    `tokens` are those of the task and of the tasks with an objective before it, as if at full length, so that they rise
    by exactly the factor `study.reduction` within a task.
    """

    task: str
    number: int
    step: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Rung:
    """What was seen of a trial at a place: a value per objective, None where it is not known there.

    `pruned` says why the trial was ended there.
    """

    task: str
    number: int
    tokens: int
    values: list[float | None]
    pruned: str | None = None

    def is_at(self, other: Rung | Place) -> bool:
        """Return whether both are the same rung: of one number, it lies elsewhere after a change of `study`."""
        return (self.task, self.number, self.tokens) == (other.task, other.number, other.tokens)


def recorded(attributes: Mapping[str, Any]) -> list[Rung]:
    """Return the rungs that a trial has on record, in order."""
    return [Rung(**found) for found in attributes.get(RUNGS, [])]


def check_rungs(space: Space, where: Where) -> None:
    """Raise ConfigError where the pruner cannot take the objectives, or a task is too short for the rungs."""
    study = space.study
    if study.pruner == NONE:
        return
    if study.pruner != SEVERAL and len(space.objectives) > 1:
        got = f"{study.pruner!r} with {len(space.objectives)}"
        raise (where / "pruner").error(f"must be {SEVERAL} (or {NONE}) where there are several objectives; got {got}")
    least = study.reduction ** min(study.rungs, 64)  # more than any task has, and still a number to print
    for name in climbed(space):
        if (steps := space.tasks[name].steps) < least:
            rule = f"{study.rungs} with reduction {study.reduction} need tasks of at least {least} optimizer steps"
            raise (where / "rungs").error(f"{rule}; got {steps} of task {name}")


def climbed(space: Space) -> list[str]:
    """Return the tasks that have rungs, those with an objective, in the order in which they are trained."""
    aims = {objective.task for objective in space.objectives}
    return [name for name in space.tasks if name in aims]


def places(space: Space) -> list[Place]:
    """Return all rungs in the order in which a trial gets to them; none without a pruner."""
    if space.study.pruner == NONE:
        return []
    found, before = [], 0
    factors = [space.study.reduction**i for i in range(space.study.rungs)]
    for name in climbed(space):
        task = space.tasks[name]
        step = task.steps // space.study.reduction**space.study.rungs
        tokens = task.tokens * step // task.steps
        for i, factor in enumerate(factors):
            found.append(Place(task=name, number=i + 1, step=step * factor, tokens=before + tokens * factor))
        before += task.tokens
    return found


def orders(space: Space, task: str) -> dict[str, Any]:
    """Return what a trial's process has to know of a task's rungs, as plain values; nothing without any."""
    steps = [place.step for place in places(space) if place.task == task]
    metrics = [objective.key for objective in space.objectives if objective.task == task]
    return {"rungs": {"steps": steps, "metrics": metrics}} if steps else {}
