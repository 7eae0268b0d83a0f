"""What objectives may want to know of a candidate besides its tasks: its cost, by formula, predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.search.budget import SPEEDS, Budget, figure
from archsearch.search.keys import check_name

if TYPE_CHECKING:
    from archsearch.search.tasks import Objective
    from archsearch.throughput.measure import Measurement
    from archsearch.throughput.predict import Estimate, Predictor

DIRECTIONS = {
    "train_tokens_per_second": "maximize",
    "decode_tokens_per_second": "maximize",
    "peak_memory": "minimize",
    "parameters": "minimize",
    "state_bytes": "minimize",
}
"""The measures, called as in the budget, and which way is better unless an objective says otherwise."""

EXACT = ("parameters", "state_bytes")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A cost with its interval at the budget's confidence; of a speed also its ratio to the anchor's."""

    value: float
    low: float | None
    high: float | None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    source: str = "formula"


def check_measure(given: Mapping[str, Any], where: Where) -> str:
    """Check the keys of an objective that is a measure, and return its default direction. Raises ConfigError."""
    measure = given["measure"]
    check_name(measure, tuple(DIRECTIONS), "measure", where / "measure")
    for name in ("task", "metric", "part", "group"):
        if name in given:
            raise (where / name).error(f"has no place beside a measure; got {given[name]!r}")
    if "length" in given and measure != "state_bytes":
        raise (where / "length").error(f"is of state_bytes only, the budget's is of the others; got {given['length']}")
    if given.get("length", 1) < 1:
        raise (where / "length").error(f"must be at least 1; got {given['length']}")
    if "of" in given and measure not in SPEEDS:
        raise (where / "of").error(f"is of {' and '.join(SPEEDS)} only; got {given['of']!r}")
    return DIRECTIONS[measure]


def want(budget: Budget, base: Architecture, objectives: Sequence[Objective], where: Where) -> Budget:
    """Return the budget with what the objectives want measured besides its limits. Raises ConfigError."""
    for i, objective in enumerate(objectives):
        if objective.of is not None:
            limit = budget.speed(SPEEDS[str(objective.measure)])
            anchor = limit.anchor_name if limit is not None and limit.fraction else "base"
            if objective.of != anchor:
                place = Where(where.source, f"{where.key}[{i}].of")
                raise place.error(
                    f"must be {anchor}, which the budget's speed is measured in turns with; got {objective.of!r}"
                )
    wanted = dict.fromkeys(x.measure for x in objectives if x.measure and x.measure not in EXACT)
    return replace(budget, wanted=tuple(wanted), origin=base.to_dict()) if wanted else budget


def exact_figures(
    objectives: Sequence[Objective], architecture: Mapping[str, Any], precision: str
) -> dict[str, dict[str, Any]]:
    """Return what formulas answer of the objectives, as plain values by the objectives' keys."""
    found: dict[str, dict[str, Any]] = {}
    for objective in objectives:
        if objective.measure in EXACT:
            model = Architecture.from_dict(architecture, Where("candidate"))
            value = float(figure(objective.measure, model, objective.length, precision))
            found[objective.key] = asdict(Figure(value=value, low=value, high=value))
    return found


def predicted_figure(name: str, budget: Budget, architecture: Architecture, predictor: Predictor) -> Figure | None:
    """Return a measured measure as a cost table predicts it, None where the table cannot."""
    from archsearch.throughput.cost_table import with_vocabulary
    from archsearch.throughput.predict import MissingPartsError

    try:
        if name == "peak_memory":
            memory = predictor.peak_memory(with_vocabulary(architecture))
            return _figure(memory, None, budget.confidence, predictor.source) if memory else None
        anchor, key = budget.anchor(SPEEDS[name]), predictor.table.key
        assert anchor is not None
        tokens = key.batch_size if key.mode == "decode" else key.batch_size * key.length
        speed = predictor.predict(with_vocabulary(architecture, anchor)).inverse(tokens)
        ratio = predictor.relative(with_vocabulary(architecture, anchor), with_vocabulary(anchor))
    except MissingPartsError:
        return None
    return _figure(speed, ratio, budget.confidence, predictor.source)


def measured_figure(name: str, measurement: Measurement) -> Figure:
    """Return a measured measure from a measurement of its mode. Raises LookupError where there is no memory in it."""
    if name == "peak_memory":
        if measurement.peak_memory_bytes is None:
            raise LookupError("peak_memory: is measured on a GPU, and this machine has none")
        memory = float(measurement.peak_memory_bytes)
        return Figure(value=memory, low=memory, high=memory, source="measured")
    plain = measurement.to_plain()
    return Figure(
        value=measurement.tokens_per_second,
        low=plain["tokens_per_second_low"],
        high=plain["tokens_per_second_high"],
        ratio=measurement.ratio,
        ratio_low=plain["ratio_low"],
        ratio_high=plain["ratio_high"],
        source="measured",
    )


def objective_figure(
    figures: Mapping[str, Mapping[str, Any]], objective: Objective
) -> tuple[float, float | None, float | None] | None:
    """Return value, low and high of an objective that is a measure, None where a trial has no such figure."""
    found = figures.get(objective.key)
    if found is None:
        return None
    names = ("ratio", "ratio_low", "ratio_high") if objective.of else ("value", "low", "high")
    value, low, high = (found[name] for name in names)
    return float(value), low, high


def _figure(estimate: Estimate, ratio: Estimate | None, confidence: float, source: str) -> Figure:
    low, high = estimate.interval(confidence)
    ratio_low, ratio_high = ratio.interval(confidence) if ratio else (None, None)
    return Figure(
        value=estimate.median,
        low=low,
        high=high,
        ratio=ratio.median if ratio else None,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        source=source,
    )
