"""The tasks that candidates are trained on, and the objectives that compare them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from archsearch.config import Where, fill, quantity
from archsearch.search.keys import check_keys, check_name
from archsearch.search.measures import check_measure

if TYPE_CHECKING:
    from archsearch.data.evaluation import Evaluation

METRICS = ("accuracy", "loss", "perplexity")
GROUP_METRICS = ("accuracy", "loss")
MINIMIZED = ("loss", "perplexity")
"""Of the others, more is better."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training run per candidate: the data class with its arguments, how long, and where it is evaluated.

    `evaluate` adds evaluation lengths to the training length; `tokens` is the length of the run, which takes so many
    optimizer `steps`; `evaluations` are all the sets that the metrics are of. `batch_sizes` are the rows of a batch, of
    each part of a mixture.
    """

    name: str
    data: str
    arguments: Mapping[str, Any]
    length: int
    evaluate: tuple[int, ...]
    tokens: int
    steps: int
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...]
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A metric of a task, at the training length or at an evaluation length, or else a `measure` of the cost.

    `part` is a part of a mixture; `group` a variant of the evaluation (32_pairs), a group of positions (depth_50), or
    both (32_pairs/distance_64). `of` makes a measured speed a fraction of another architecture's.
    """

    task: str = ""
    metric: str = ""
    direction: Literal["maximize", "minimize"]
    length: int | None = None
    part: str | None = None
    group: str | None = None
    measure: str | None = None
    of: str | None = None

    @property
    def key(self) -> str:
        """The metric's name in a task's results, or the measure's among a trial's figures."""
        names = [self.measure or self.metric, self.part, self.length and str(self.length), self.group]
        return "/".join(name for name in names if name)

    @property
    def label(self) -> str:
        """The objective in a table's head."""
        names = [self.task, self.part, self.measure or self.metric, self.length and f"@{self.length}", self.group]
        return " ".join(name for name in [*names, self.of and f"of {self.of}"] if name)

    def better(self, value: float) -> float:
        """Return the value turned so that more is better."""
        return value if self.direction == "maximize" else -value


def parse_tasks(values: Mapping[str, Any], where: Where) -> dict[str, Task]:
    """Read the tasks. Raises ConfigError; what the data class does not take is refused with the nearest name."""
    if not values:
        raise where.error("must name at least one task; got {}")
    for name in values:
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]*", str(name)):  # it names a folder in that of a trial
            raise where.error(f"names must match [A-Za-z0-9][A-Za-z0-9_-]*; got {name!r}")
    return {str(name): _task(str(name), task, where / str(name)) for name, task in values.items()}


def parse_objectives(values: list[Any], tasks: Mapping[str, Task], where: Where) -> tuple[Objective, ...]:
    """Read the objectives; the first names the winner, later ones break ties. Raises ConfigError."""
    if not values:
        raise where.error("must name at least one objective; got []")
    objectives = tuple(
        _objective(value, tasks, Where(where.source, f"{where.key}[{i}]")) for i, value in enumerate(values)
    )
    if objectives[0].measure:
        rule = "must be a metric of a task: the first objective names the winner, and training has to tell"
        raise Where(where.source, f"{where.key}[0]").error(f"{rule}; got the measure {objectives[0].measure!r}")
    repeated = next((x for i, x in enumerate(objectives) if x in objectives[:i]), None)
    if repeated:
        raise where.error(f"must name each objective once; got {repeated.label!r} twice")
    return objectives


def data_classes() -> dict[str, type]:
    """Return the data modules that a task may name."""
    import archsearch.data

    return {name: getattr(archsearch.data, name) for name in archsearch.data.__all__}


@dataclass(frozen=True, kw_only=True)
class _Common:
    """What every task takes besides its data's own arguments."""

    data: str
    length: int | None = None
    evaluate: list[int] = field(default_factory=list)
    tokens: int = quantity("count")
    learning_rate: float | None = None
    batch_size: int | None = None
    optimizer: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)


_FILLED_IN = ("seed", "length", "batch_size", "eval_lengths")
"""Arguments of a data class that a space does not write as they are."""


def _task(name: str, values: Any, where: Where) -> Task:
    if not isinstance(values, Mapping):
        raise where.error(f"must be a mapping with data, tokens and the data's arguments; got {values!r}")
    if "data" not in values:
        raise (where / "data").error("is required")
    from archsearch.data.arguments import argument_names, typed_arguments

    classes = data_classes()
    check_name(values["data"], tuple(classes), "data", where / "data")
    data = classes[values["data"]]
    names = [field.name for field in fields(_Common)]
    own = [argument for argument in argument_names(data) if argument not in _FILLED_IN]
    check_keys(values, names + own, where)
    common = fill(_Common, {key: value for key, value in values.items() if key in names}, where)
    _check_common(common, where)
    arguments = typed_arguments(data, {key: value for key, value in values.items() if key in own}, where)
    shared = {"length": common.length, "batch_size": common.batch_size}
    arguments |= {key: value for key, value in shared.items() if value is not None}
    try:
        module: Any = data(**arguments, eval_lengths=common.evaluate)
    except ValueError as error:
        raise where.error(str(error)) from None
    learning_rate = {} if common.learning_rate is None else {"learning_rate": common.learning_rate}
    return Task(
        name=name,
        data=common.data,
        arguments=arguments,
        length=module.length,
        evaluate=tuple(common.evaluate),
        tokens=int(common.tokens),
        steps=module.steps_for(int(common.tokens)),
        optimizer={**common.optimizer, **learning_rate},
        schedule=common.schedule,
        evaluations=tuple(module.evaluations()),
        batch_sizes=tuple(part.batch_size for part in getattr(module, "parts", {"": module}).values()),
    )


def _check_common(common: _Common, where: Where) -> None:
    from archsearch.training.step import OptimizerOptions, ScheduleOptions

    numbers = {"tokens": common.tokens, "length": common.length, "batch_size": common.batch_size}
    numbers |= {f"evaluate[{i}]": length for i, length in enumerate(common.evaluate)}
    for key, value in numbers.items():
        if value is not None and value < 1:
            raise (where / key).error(f"must be at least 1; got {value}")
    if common.learning_rate is not None and common.learning_rate <= 0:
        raise (where / "learning_rate").error(f"must be positive; got {common.learning_rate}")
    fill(OptimizerOptions, common.optimizer, where / "optimizer")
    fill(ScheduleOptions, common.schedule, where / "schedule")


@dataclass(frozen=True, kw_only=True)
class _WrittenObjective:
    """An objective as its YAML spells it: of a task, or a measure."""

    task: str | None = None
    metric: str | None = None
    direction: Literal["maximize", "minimize"] | None = None
    length: int | None = quantity("count", default=None)
    part: str | None = None
    group: str | None = None
    measure: str | None = None
    of: str | None = None


def _objective(values: Any, tasks: Mapping[str, Task], where: Where) -> Objective:
    """Read one objective; at the training length it is the plain metric, unless it is of a group."""
    written = fill(_WrittenObjective, values, where)
    given = {name: value for name, value in asdict(written).items() if value is not None}
    if written.measure is not None:
        return Objective(**{"direction": check_measure(given, where), **given})
    if written.of is not None:
        raise (where / "of").error(f"makes a measured speed a fraction; a metric has none; got {written.of!r}")
    for name in ("task", "metric"):
        if name not in given:
            raise (where / name).error("is required, unless there is a measure")
    objective = Objective(**{"direction": "minimize" if written.metric in MINIMIZED else "maximize", **given})
    check_name(objective.task, tuple(tasks), "task", where / "task")
    task = tasks[objective.task]
    own = _of_part(objective, task, where)
    standard = next(evaluation.length for evaluation in own if evaluation.standard)
    length = standard if objective.length is None else objective.length
    lengths = sorted({evaluation.length for evaluation in own})
    if length not in lengths:
        known = ", ".join(map(str, lengths))
        rule = f"must be a length that task {task.name} is evaluated at ({known})"
        raise (where / "length").error(f"{rule}; got {objective.length}")
    metrics = _metrics([evaluation for evaluation in own if evaluation.length == length])
    if objective.group not in metrics:
        groups = tuple(group for group in metrics if group)
        if not groups:
            raise (where / "group").error(f"task {task.name} has no groups at length {length}; got {objective.group!r}")
        check_name(str(objective.group), groups, "group", where / "group")
    check_name(objective.metric, metrics[objective.group], "metric", where / "metric")
    needed = objective.group is not None or length != standard
    return replace(objective, length=length if needed else None)


def _of_part(objective: Objective, task: Task, where: Where) -> list[Evaluation]:
    """Return the evaluations of the objective's part, or of the whole task where it has none."""
    parts = tuple(dict.fromkeys(evaluation.part for evaluation in task.evaluations if evaluation.part))
    if parts and objective.part is None:
        raise (where / "part").error(f"is required: task {task.name} is a mixture of {', '.join(parts)}")
    if objective.part is not None:
        if not parts:
            raise (where / "part").error(f"task {task.name} is no mixture; got {objective.part!r}")
        check_name(objective.part, parts, "part", where / "part")
    return [evaluation for evaluation in task.evaluations if evaluation.part == (objective.part or "")]


def _metrics(evaluations: list[Evaluation]) -> dict[str | None, tuple[str, ...]]:
    """Return which metrics there are at one length: without a group, and of each group."""
    metrics: dict[str | None, tuple[str, ...]] = {}
    for evaluation in evaluations:
        metrics[evaluation.variant or None] = (*METRICS, *evaluation.metrics)
        for group in evaluation.groups:
            metrics["/".join(filter(None, [evaluation.variant, group]))] = GROUP_METRICS
    return metrics
