"""A search space: YAML in, frozen dataclasses out, every rule checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.config import Where, fill, load_yaml, quantity
from archsearch.pattern import compact
from archsearch.registry import MixerOptions
from archsearch.search.budget import Budget, parse_budget
from archsearch.search.choices import Choice, parse_choices
from archsearch.search.keys import check_keys, check_name
from archsearch.search.placement import PLACEMENTS, Slots, find_slots
from archsearch.search.samplers import SAMPLERS
from archsearch.search.tasks import Objective, Task, parse_objectives, parse_tasks


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many slots are filled, both ends included."""

    low: int = 0
    high: int


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """How many of the best candidates are trained again, with how many fresh seeds."""

    top: int = 3
    seeds: int = 3


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How the space is searched. `trials` counts distinct candidates, illegal and refused ones included.

    `retries` is how often a trial is run again that has been ended by what was not its fault.
    """

    sampler: str = "tpe"
    trials: int = 60
    startup: int = 10
    pruner: str = "none"
    confirm: Confirm = field(default_factory=Confirm)
    timeout_per_trial: float = quantity("seconds", default=3600.0)
    retries: int = 2
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched. `base` has no slot filled; `published` are the options written for the inserted mixer."""

    name: str
    base: Architecture
    replace: str
    insert: str
    slots: Slots
    count: Count
    placements: tuple[str, ...]
    choices: Mapping[str, Choice]
    published: MixerOptions
    tasks: Mapping[str, Task]
    objectives: tuple[Objective, ...]
    budget: Budget
    study: StudyOptions
    written: Mapping[str, Any]


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
    place = where / "space"
    check_keys(
        written.space, ("replace", "with", "count", "placement", "mixers"), place, required=("replace", "with", "count")
    )
    replace, insert = (_letter(written.space[key], base, place / key) for key in ("replace", "with"))
    _check_letters(replace, insert, base, place)
    slots = find_slots(base, replace)
    mixer = base.mixers.get(insert) or base.with_pattern(insert).mixers[insert]
    tasks = parse_tasks(written.tasks, where / "tasks")
    return Space(
        name=written.name,
        base=_bind(base, insert),
        replace=replace,
        insert=insert,
        slots=slots,
        count=_count(written.space["count"], base, replace, slots, place / "count"),
        placements=_placements(written.space.get("placement", ["first", "spread", "last"]), slots, place / "placement"),
        choices=_choices(written.space.get("mixers", {}), insert, type(mixer.options), place / "mixers"),
        published=mixer.options,
        tasks=tasks,
        objectives=parse_objectives(written.objectives, tasks, where / "objectives"),
        budget=parse_budget(written.budget, base, where / "budget"),
        study=_study(written.study, where / "study"),
        written=dict(values),
    )


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


def _letter(value: object, base: Architecture, where: Where) -> str:
    letters = sorted({*base.mixers, *registry.default_letters()})
    if not isinstance(value, str) or value not in letters:
        raise where.error(f"must be one letter of this architecture ({', '.join(letters)}); got {value!r}")
    return value


def _check_letters(replace: str, insert: str, base: Architecture, where: Where) -> None:
    pattern = compact(base.pattern)
    if replace == insert:
        raise (where / "with").error(f"must be another letter than space.replace; got {insert!r} for both")
    if replace not in base.pattern:
        raise (where / "replace").error(f"must occur in the base pattern {pattern}; got {replace!r}")
    if insert in base.pattern:
        raise (where / "with").error(f"must not occur in the base pattern {pattern}; got {insert!r}")


def _bind(base: Architecture, insert: str) -> Architecture:
    """Return the base with the inserted letter bound as well."""
    return base.with_pattern(base.pattern + insert).with_pattern(base.pattern)


def _count(values: object, base: Architecture, replace: str, slots: Slots, where: Where) -> Count:
    count = fill(Count, values, where)
    if count.low < 0:
        raise (where / "low").error(f"must be at least 0; got {count.low}")
    if count.low > count.high:
        raise where.error(f"low <= high must hold; got low={count.low}, high={count.high}")
    if count.high > slots.total:
        places = f"the {slots.total} places of {replace} in {compact(base.pattern)}"
        raise (where / "high").error(f"must be at most the number of slots ({places}); got {count.high}")
    return count


def _placements(values: object, slots: Slots, where: Where) -> tuple[str, ...]:
    if not isinstance(values, list) or not values:
        raise where.error(f"must be a list of {', '.join(PLACEMENTS)}; got {values!r}")
    beside = {"before_attention": slots.before_attention, "after_attention": slots.after_attention}
    for i, name in enumerate(values):
        place = Where(where.source, f"{where.key}[{i}]")
        check_name(name, PLACEMENTS, "placement", place)
        if name in values[:i]:
            raise place.error(f"must name each placement once; got {name!r} twice")
        if not beside.get(name, (0,)):
            raise place.error(f"no slot stands next to attention on that side; got {name!r}")
    return tuple(values)


def _choices(values: object, insert: str, options: type[MixerOptions], where: Where) -> Mapping[str, Choice]:
    if not isinstance(values, Mapping):
        raise where.error(f"must be a mapping from the letter {insert} to its options; got {values!r}")
    for letter in values:
        if letter != insert:
            raise (where / str(letter)).error(f"only the shape of space.with ({insert}) is searched; got {letter!r}")
    return parse_choices(values.get(insert, {}), options, where / insert)


def _study(values: object, where: Where) -> StudyOptions:
    study = fill(StudyOptions, values, where)
    check_name(study.sampler, tuple(SAMPLERS), "sampler", where / "sampler")
    if study.pruner != "none":
        raise (where / "pruner").error(f"must be none, the only pruner there is; got {study.pruner!r}")
    for name, value, least in (
        ("trials", study.trials, 1),
        ("startup", study.startup, 0),
        ("retries", study.retries, 0),
        ("confirm.top", study.confirm.top, 0),
        ("confirm.seeds", study.confirm.seeds, 0),
        ("seed", study.seed, 0),
    ):
        if value < least:
            raise (where / name).error(f"must be at least {least}; got {value}")
    if study.timeout_per_trial <= 0:
        raise (where / "timeout_per_trial").error(f"must be positive; got {study.timeout_per_trial}")
    return study
