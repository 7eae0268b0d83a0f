"""The budget's verdict on a candidate: by prediction where that is sure, by measuring it whole where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.architecture import Architecture
from archsearch.search.budget import SPEEDS, Budget, Check, Throughput, hold
from archsearch.search.measures import Figure, measured_figure, predicted_figure
from archsearch.throughput.cost_table import CostTable, load_table, part_of, with_vocabulary
from archsearch.throughput.predict import Estimate, MissingPartsError, Predictor
from archsearch.throughput.verdict import verdict_of

if TYPE_CHECKING:
    from archsearch.throughput.measure import Measurement

BARELY = 1e-6  # the violation of a limit that was met in the median but not surely


@dataclass(frozen=True, kw_only=True)
class Table:
    """A cost table's file in use; `warning` stands beside every figure of one that is another machine's.

    `foreign_card` marks one of another card: what is measured here has no place in its answers.
    """

    path: Path
    warning: str | None = None
    foreign_card: bool = False

    def load(self) -> CostTable:
        """Read the file as it is now."""
        return load_table(self.path)

    def predictor(self) -> Predictor:
        """Return what predicts from the file as it is now."""
        return Predictor(self.load(), self.warning)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a trial's config.yaml."""
        return {**asdict(self), "path": str(self.path)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Table:
        """Return what `to_plain` wrote."""
        return cls(**{**plain, "path": Path(plain["path"])})


@dataclass
class Judgement:
    """What the budget says so far: `checks` by limit, `open` the limits that prediction leaves open.

    `figures` is what a trial's record keeps of the throughput, predicted or measured; `wanted` what objectives want.
    """

    checks: dict[str, Check] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    figures: dict[str, Any] | None = None
    wanted: dict[str, Figure] = field(default_factory=dict)


def predict(budget: Budget, architecture: Architecture, predictors: Mapping[str, Predictor]) -> Judgement:
    """Hold the measured limits against predictions by mode; a limit that its interval straddles is left open.

    What a table lacks is left open too. Takes microseconds, and no torch.
    """
    found = Judgement()
    for name, mode in SPEEDS.items():
        if (limit := budget.speed(mode)) is not None:
            check = _predicted_speed(name, limit, budget, architecture, predictors.get(mode), found)
            _note(found, name, check)
    if budget.peak_memory is not None:
        _note(found, "peak_memory", _predicted_memory(budget, architecture, predictors.get("train")))
    return found


def decide(
    budget: Budget,
    architecture: Architecture,
    tables: Mapping[str, Table],
    measure: Callable[[Budget, Architecture, str, bool], Measurement] | None = None,
    say: Callable[[str], None] = print,
) -> Judgement:
    """Settle every measured limit: by prediction, measuring what the table lacks, then by measuring the candidate.

    What meets them gets the figures that objectives want. Raises LookupError where there is no way to one.
    """
    predictors: dict[str, Predictor] = {}
    measured: dict[str, Measurement] = {}
    for mode, table in tables.items():
        loaded = table.load()
        if table.warning is None:
            _complete(loaded, table, architecture, say)
        predictors[mode] = Predictor(loaded, table.warning)
    found = predict(budget, architecture, predictors)

    def take(mode: str, asks_speed: bool) -> Measurement:
        say(f"measuring {mode}")
        return (measure or measure_whole)(budget, architecture, mode, asks_speed)

    for mode in budget.modes:
        names = [name for name in found.open if SPEEDS.get(name, "train") == mode]
        if names and mode in tables and tables[mode].foreign_card:
            for name in names:
                _note(found, name, _unanswerable(name, budget, architecture, predictors[mode]))
        elif names:
            measured[mode] = take(mode, budget.wants_speed(mode) or any(name in SPEEDS for name in names))
            _add_measured(found, names, mode, budget, architecture, measured[mode])
    found.open = []
    if not any(check.violation > 0 for check in found.checks.values()):
        foreign = {mode for mode, table in tables.items() if table.foreign_card}
        _add_wanted(found, budget, architecture, predictors, measured, take, foreign)
    return found


def measure_whole(budget: Budget, architecture: Architecture, mode: str, asks_speed: bool) -> Measurement:
    """Time the candidate's steps against the anchor's in interleaved rounds, until the answer is sure or time is up."""
    from archsearch.throughput.conditions import Conditions
    from archsearch.throughput.measure import Target, compare

    conditions, speed, target = Conditions(**budget.conditions(mode)), budget.speed(mode), None
    if not asks_speed:
        return compare(architecture, architecture, conditions)
    if speed is not None:
        narrow = budget.wants_speed(mode)
        target = Target(at_least=speed.at_least, absolute=not speed.fraction, narrow=narrow)
    return compare(architecture, budget.anchor(mode) or architecture, conditions, target=target)


def speed_check(
    name: str,
    limit: Throughput,
    value: float,
    interval: tuple[float, float],
    probability: float,
    confidence: float,
    source: str,
    *,
    is_base: bool = False,
) -> Check:
    """Return the verdict on a speed of which P(speed >= limit) is known.

    An undecided one is refused, by the lower bound of its interval; the base is let in.
    """
    verdict = verdict_of(probability, confidence)
    assert verdict is not None
    violation = 1 - (interval[0] if verdict == "undecided" else value) / limit.at_least
    let_in = verdict == "feasible" or (verdict == "undecided" and is_base)
    return Check(
        name=name,
        value=float(value),
        limit=str(limit),
        violation=float(min(violation, 0.0) if let_in else max(violation, BARELY)),
        verdict=verdict,
        probability=float(probability),
        source=source,
        words=_words(name, limit, value, interval, probability, verdict, source, is_base),
    )


def _words(
    name: str,
    limit: Throughput,
    value: float,
    interval: tuple[float, float],
    probability: float,
    verdict: str,
    source: str,
    is_base: bool,
) -> str:
    """Return `train_tokens_per_second 0.91 of base, budget 0.94, p = 0.99 (predicted)`."""
    shown = "{:.3g}" if limit.fraction else "{:,.0f}"
    of = f" of {limit.anchor_name}" if limit.fraction else ""
    asked = f"{limit.at_least:g}" if limit.fraction else f"{limit.at_least:,.0f}"
    text = f"{name} {shown.format(value)}{of}, budget {asked}"
    if verdict != "undecided":
        sure = probability if verdict == "feasible" else 1 - probability
        if source == "formula":
            return f"{text} (the anchor itself)"
        return f"{text}, p = {min(sure, 0.999):.3g} ({source})"
    low, high = (shown.format(bound) for bound in interval)
    counts = "the base counts as feasible" if is_base else "counts as infeasible"
    return f"{text}: undecided, from {low} to {high} ({source}; {counts})"


def _predicted_speed(
    name: str,
    limit: Throughput,
    budget: Budget,
    architecture: Architecture,
    predictor: Predictor | None,
    found: Judgement,
) -> Check | None:
    is_base = architecture.id == budget.base
    estimates = _estimates(limit, architecture, predictor)
    if limit.fraction and architecture.id == limit.anchor.id:
        if estimates and predictor and name == "train_tokens_per_second":
            itself = Estimate(median=1.0, spread=0.0, freedom=1)
            found.figures = _predicted_figures(predictor, estimates[0], itself, budget.confidence)
        probability = float(limit.at_least <= 1)
        return speed_check(name, limit, 1.0, (1.0, 1.0), probability, budget.confidence, "formula", is_base=is_base)
    if estimates is None or predictor is None:
        return None
    speed, ratio = estimates
    asked = ratio if limit.fraction else speed
    assert asked is not None
    if name == "train_tokens_per_second":
        found.figures = _predicted_figures(predictor, speed, ratio, budget.confidence)
    probability = asked.probability_above(limit.at_least)
    if 1 - budget.confidence < probability < budget.confidence:
        return None
    interval = asked.interval(budget.confidence)
    return speed_check(name, limit, asked.median, interval, probability, budget.confidence, predictor.source)


def _estimates(
    limit: Throughput, architecture: Architecture, predictor: Predictor | None
) -> tuple[Estimate, Estimate | None] | None:
    """Return the tokens/s and the ratio to the anchor, None where the table lacks something."""
    if predictor is None:
        return None
    own, anchor = with_vocabulary(architecture, limit.anchor), with_vocabulary(limit.anchor)
    key = predictor.table.key
    tokens = key.batch_size if key.mode == "decode" else key.batch_size * key.length
    try:
        return predictor.predict(own).inverse(tokens), predictor.relative(own, anchor) if limit.fraction else None
    except MissingPartsError:
        return None


def _predicted_figures(
    predictor: Predictor, speed: Estimate, ratio: Estimate | None, confidence: float
) -> dict[str, Any]:
    low, high = ratio.interval(confidence) if ratio else (None, None)
    return {
        "source": "predicted",
        "warning": predictor.warning,
        "tokens_per_second": speed.median,
        "ratio": ratio.median if ratio else None,
        "ratio_low": low,
        "ratio_high": high,
        "device": predictor.table.key.card,
        "seconds": 0.0,
    }


def _predicted_memory(budget: Budget, architecture: Architecture, predictor: Predictor | None) -> Check | None:
    limit = budget.peak_memory
    assert limit is not None
    if predictor is None:
        return None
    try:
        estimate = predictor.peak_memory(with_vocabulary(architecture))
    except MissingPartsError:
        return None
    assert limit.at_most is not None
    if estimate is None:
        return None
    too_much = estimate.probability_above(limit.at_most)
    if 1 - budget.confidence < too_much < budget.confidence:
        return None
    return hold("peak_memory", estimate.median, limit, source=predictor.source, probability=max(too_much, 1 - too_much))


def _add_wanted(
    found: Judgement,
    budget: Budget,
    architecture: Architecture,
    predictors: Mapping[str, Predictor],
    measured: dict[str, Measurement],
    take: Callable[[str, bool], Measurement],
    foreign: set[str],
) -> None:
    """Add the figures that objectives want: as measured for a limit, else predicted, else measured for them alone."""
    for name in budget.wanted:
        mode = SPEEDS.get(name, "train")
        predictor = predictors.get(mode)
        if mode not in measured:
            figure = predicted_figure(name, budget, architecture, predictor) if predictor else None
            if figure is not None:
                found.wanted[name] = figure
                continue
            if mode in foreign:
                raise LookupError(f"{name}: not in another card's cost table, and cannot be measured here")
            measured[mode] = take(mode, budget.wants_speed(mode))
            if found.figures is None:
                found.figures = _measured_figures(measured[mode], budget, asks_speed=budget.wants_speed(mode))
        found.wanted[name] = measured_figure(name, measured[mode])


def _unanswerable(name: str, budget: Budget, architecture: Architecture, predictor: Predictor) -> Check:
    """Return `undecided` for what a foreign card's table leaves open, since this machine cannot answer for it."""
    speed, is_base = budget.speed(SPEEDS.get(name, "train")), architecture.id == budget.base
    if name not in SPEEDS or speed is None:
        assert budget.peak_memory is not None
        models, limit, let_in = [with_vocabulary(architecture)], str(budget.peak_memory), False
    else:
        own = with_vocabulary(architecture, speed.anchor)
        models, limit, let_in = [own, *([with_vocabulary(speed.anchor)] if speed.fraction else [])], str(speed), is_base
        if estimates := _estimates(speed, architecture, predictor):
            asked = estimates[1] if speed.fraction else estimates[0]
            assert asked is not None
            interval, probability = asked.interval(budget.confidence), asked.probability_above(speed.at_least)
            return speed_check(
                name, speed, asked.median, interval, probability, budget.confidence, predictor.source, is_base=is_base
            )
    counts = "the base counts as feasible" if let_in else "counts as infeasible"
    missing = _missing(predictor, models)
    why = f": not in the table: {missing}" if missing else ""
    return Check(
        name=name,
        value=None,
        limit=limit,
        violation=0.0 if let_in else BARELY,
        verdict="undecided",
        probability=0.5,
        source=predictor.source,
        words=f"{name}: undecided{why} ({predictor.source}; {counts})",
    )


def _missing(predictor: Predictor, architectures: Sequence[Architecture]) -> str:
    """Return the parts that the table lacks, in words."""
    lacking = {part for x in architectures for part in predictor.table.missing(x)}
    words = {
        part: f"{letter}: {x.mixers[letter].type}, {x.mixers[letter].options.shape()}"
        for x in architectures
        for letter in x.pattern
        if (part := part_of(x, letter)) in lacking
    }
    return "; ".join(sorted(words.get(part, part) for part in lacking))


def _add_measured(
    found: Judgement,
    names: Sequence[str],
    mode: str,
    budget: Budget,
    architecture: Architecture,
    measurement: Measurement,
) -> None:
    for name in names:
        limit = budget.speed(mode)
        if name == "peak_memory":
            assert budget.peak_memory is not None
            if measurement.peak_memory_bytes is not None:
                _note(found, name, hold(name, measurement.peak_memory_bytes, budget.peak_memory, source="measured"))
            continue
        assert limit is not None
        _note(found, name, check_measured_speed(name, limit, budget, architecture, measurement))
    asks_speed = budget.wants_speed(mode) or any(name in SPEEDS for name in names)
    alone = budget.speed(mode) is not None and not asks_speed
    if (mode == "train" and not alone) or found.figures is None:  # alone: timed for its memory, its speed is predicted
        found.figures = _measured_figures(measurement, budget, asks_speed=asks_speed)


def _measured_figures(measurement: Measurement, budget: Budget, *, asks_speed: bool) -> dict[str, Any]:
    """Return a measurement as plain values; without an anchor it was timed beside itself, which is no ratio."""
    figures = {"source": "measured", **measurement.to_plain()}
    if not asks_speed or budget.anchor(measurement.mode) is None:
        figures |= dict.fromkeys(("base_tokens_per_second", "ratio", "ratio_low", "ratio_high"))
        figures["round_ratios"] = ()
    return figures


def check_measured_speed(
    name: str, limit: Throughput, budget: Budget, architecture: Architecture, measurement: Measurement
) -> Check:
    """Hold a limit on a speed against a measurement that was asked for it."""
    assert measurement.probability is not None
    if limit.fraction:
        value, interval = measurement.ratio, (measurement.ratio_low, measurement.ratio_high)
    else:
        value = measurement.tokens_per_second
        interval = measurement.tokens_per_second_low or 0.0, measurement.tokens_per_second_high or float("inf")
    is_base = architecture.id == budget.base
    return speed_check(
        name, limit, value, interval, measurement.probability, budget.confidence, "measured", is_base=is_base
    )


def _note(found: Judgement, name: str, check: Check | None) -> None:
    if check is None:
        found.open.append(name)
    else:
        found.checks[name] = check


def _complete(loaded: CostTable, table: Table, architecture: Architecture, say: Callable[[str], None]) -> None:
    """Measure what the table lacks of a candidate, and add it to the file."""
    if not loaded.missing(with_vocabulary(architecture)):
        return
    from archsearch.throughput.tabulate import Tabulator

    say(f"adding to {table.path.name}")
    Tabulator(loaded, table.path, say=say).complete([architecture])
