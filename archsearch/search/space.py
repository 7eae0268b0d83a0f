"""A search space: YAML in, frozen dataclasses out, every rule checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archsearch.architecture import Architecture
from archsearch.config import Where, fill, load_yaml, quantity
from archsearch.pattern import compact
from archsearch.search.bases import check_inserted, parse_backbones, parse_letter, parse_letters, parse_patterns
from archsearch.search.budget import Budget, parse_budget
from archsearch.search.choices import Choices, Range
from archsearch.search.forbid import Forbidden, decisions, parse_forbidden
from archsearch.search.keys import check_keys, check_name
from archsearch.search.measures import want
from archsearch.search.placement import Slots
from archsearch.search.pruners import PRUNERS
from archsearch.search.replacement import Replacement, parse_replacements
from archsearch.search.rungs import check_rungs
from archsearch.search.samplers import SAMPLERS
from archsearch.search.tasks import Objective, Task, parse_objectives, parse_tasks

KEYS = ("replace", "with", "count", "placement", "mixers", "patterns", "backbone", "forbid")
STRATEGIES = ("ddp", "fsdp2")
"""How the devices of a trial share its model: each holds all of it, or a shard."""

MOST_SEED = 2**31 - 1
"""Confirmation adds to a seed, and generators of random numbers take 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """How many of the best candidates are trained again, with how many fresh seeds.

    `among` says which these are: the best by the first objective, of all or of the Pareto front.
    """

    top: int = 3
    seeds: int = 3
    among: str = "all"


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How the space is searched. `trials` counts distinct candidates, illegal and refused ones included.

    A `pruner` looks at every candidate after `reduction**-rungs`, ..., `reduction**-2` and `reduction**-1` of the
    tokens of each task that has an objective (1/9 and 1/3 by default) and may end it there. `asha` and `hyperband` keep
    the best 1 of `reduction`; `median` and `pareto` (for several objectives too) keep the better half, and everything
    until `startup` others are there to compare with. The base is never pruned.

    Each trial trains on `devices` GPUs of one machine, which share the rows of a batch. `retries` is how often a trial
    is run again that has been ended by what was not its fault.
    """

    sampler: str = "tpe"
    trials: int = 60
    startup: int = 10
    pruner: str = "none"
    rungs: int = 2
    reduction: int = 3
    confirm: Confirm = field(default_factory=Confirm)
    timeout_per_trial: float = quantity("seconds", default=3600.0)
    retries: int = 2
    seed: int = 0
    devices: int = 1
    strategy: str = "ddp"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched. `base` is the architecture as written, with no slot filled.

    `patterns` are the slots of every base pattern by its compact spelling, the base's own first; `backbones` are the
    letters that may stand where a slot is not filled, `replace` first.
    """

    name: str
    base: Architecture
    replace: str
    patterns: Mapping[str, Slots]
    backbones: tuple[str, ...]
    replacements: tuple[Replacement, ...]
    forbidden: tuple[Forbidden, ...]
    tasks: Mapping[str, Task]
    objectives: tuple[Objective, ...]
    budget: Budget
    study: StudyOptions
    written: Mapping[str, Any]

    @property
    def pattern(self) -> str:
        """The base's own pattern, as `patterns` spells it."""
        return next(iter(self.patterns))

    @property
    def slots(self) -> Slots:
        """The slots of the base's own pattern."""
        return self.patterns[self.pattern]

    @property
    def decisions(self) -> dict[str, Choices | Range]:
        """What is decided by name, in the order in which it is asked; numbers of free slots apart."""
        return decisions(self.patterns, self.backbones, self.replacements)


def load_space(path: str | Path) -> Space:
    """Read a search space's file. Raises ConfigError with file, key, rule and value."""
    return parse_space(load_yaml(path), Where(str(path)))


def parse_space(values: Mapping[str, Any], where: Where) -> Space:
    """Read a search space from plain values, as its YAML holds them. Raises ConfigError."""
    written = fill(_Written, values, where)
    if (
        not written.name
        or not set(written.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        or written.name[0] in "_-"
    ):
        raise (where / "name").error(f"must match [a-z0-9][a-z0-9_-]*; got {written.name!r}")
    base = Architecture.from_dict(written.architecture, where / "architecture")
    place, values_of = where / "space", written.space
    check_keys(values_of, KEYS, place, required=("replace", "with", "count"))
    replace = parse_letter(values_of["replace"], base, place / "replace")
    letters = parse_letters(values_of["with"], base, place / "with")
    if replace not in base.pattern:
        raise (place / "replace").error(f"must occur in the base pattern {compact(base.pattern)}; got {replace!r}")
    num_layers = len(base.pattern) if written.architecture.get("num_layers") is not None else None
    patterns = parse_patterns(values_of.get("patterns"), base, num_layers, replace, place / "patterns")
    backbones = parse_backbones(values_of.get("backbone"), base, replace, patterns, place / "backbone")
    check_inserted(letters, replace, patterns, backbones, place / "with")
    bound = _bind(base, [*letters, *backbones, *patterns])
    replacements = parse_replacements(values_of, letters, bound, patterns, replace, place)
    tasks = parse_tasks(written.tasks, where / "tasks")
    objectives = parse_objectives(written.objectives, tasks, where / "objectives")
    budget = parse_budget(written.budget, base, where / "budget")
    study = _study(written.study, len(objectives), where / "study")
    _check_devices(study.devices, tasks, where / "tasks")
    space = Space(
        name=written.name,
        base=bound,
        replace=replace,
        patterns=patterns,
        backbones=backbones,
        replacements=replacements,
        forbidden=parse_forbidden(
            values_of.get("forbid", []), patterns, num_layers, backbones, replacements, place / "forbid"
        ),
        tasks=tasks,
        objectives=objectives,
        budget=want(budget, base, objectives, where / "objectives"),
        study=study,
        written=dict(values),
    )
    check_rungs(space, where / "study")
    return space


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A search space as its YAML spells it, one block after the other."""

    name: str
    architecture: dict[str, Any]
    space: dict[str, Any]
    tasks: dict[str, Any]
    objectives: list[Any]
    budget: dict[str, Any] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)


def _bind(base: Architecture, patterns: Sequence[str]) -> Architecture:
    """Return the base with the letters of further patterns bound as well."""
    bound = base
    for pattern in patterns:
        bound = bound.with_pattern(pattern)
    return bound.with_pattern(base.pattern)


def _study(values: object, objectives: int, where: Where) -> StudyOptions:
    study = fill(StudyOptions, values, where)
    check_name(study.sampler, tuple(SAMPLERS), "sampler", where / "sampler")
    check_name(study.confirm.among, ("all", "front"), "choice", where / "confirm.among")
    if study.confirm.among == "front" and objectives == 1:
        raise (where / "confirm.among").error("there is a front of several objectives only; got 'front' and one")
    check_name(study.pruner, tuple(PRUNERS), "pruner", where / "pruner")
    check_name(study.strategy, STRATEGIES, "strategy", where / "strategy")
    for name, value, least in (
        ("trials", study.trials, 1),
        ("startup", study.startup, 0),
        ("rungs", study.rungs, 1),
        ("reduction", study.reduction, 2),
        ("retries", study.retries, 0),
        ("confirm.top", study.confirm.top, 0),
        ("confirm.seeds", study.confirm.seeds, 0),
        ("seed", study.seed, 0),
        ("devices", study.devices, 1),
    ):
        if value < least:
            raise (where / name).error(f"must be at least {least}; got {value}")
    if study.seed > MOST_SEED:
        raise (where / "seed").error(f"must be at most {MOST_SEED}; got {study.seed}")
    if study.timeout_per_trial <= 0:
        raise (where / "timeout_per_trial").error(f"must be positive; got {study.timeout_per_trial}")
    return study


def _check_devices(devices: int, tasks: Mapping[str, Task], where: Where) -> None:
    for name, task in tasks.items():
        for rows in task.batch_sizes:
            if rows % devices:
                rule = f"must be a multiple of study.devices ({devices}), which share its rows"
                raise (where / name / "batch_size").error(f"{rule}; got {rows}")
