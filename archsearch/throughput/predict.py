"""Predict the cost of any pattern from a table, with the interval that its own errors and residuals give it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtr, stdtrit

from archsearch.architecture import Architecture
from archsearch.throughput.cost_table import CostTable, Whole, parts_of

PRIOR_SPREAD = 0.015
PRIOR_WEIGHT = 2
"""Before whole patterns have shown how far a table is off, it counts as if two of them had been 1.5 % off."""


WIDEST = 700.0
"""Half an interval on the log scale, at most: beyond it a float overflows."""


class MissingPartsError(LookupError):
    """A table lacks some parts of an architecture."""

    def __init__(self, parts: Sequence[str]) -> None:
        super().__init__(f"not in the table: {'; '.join(parts)}")
        self.parts = parts


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A positive figure on the log scale: median, spread, and the degrees of freedom of Student's t around it."""

    median: float
    spread: float
    freedom: float

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval."""
        width = min(float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.spread, WIDEST)
        return self.median * math.exp(-width), self.median * math.exp(width)

    def probability_above(self, value: float) -> float:
        """Return P(figure >= value)."""
        excess = math.log(self.median / value)
        return float(stdtr(self.freedom, excess / self.spread)) if self.spread else float(excess >= 0)

    def inverse(self, numerator: float = 1.0) -> Estimate:
        """Return the estimate of `numerator / figure`."""
        return Estimate(median=numerator / self.median, spread=self.spread, freedom=self.freedom)


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """How whole patterns differ from the sum of their parts, as log ratios measured / sum: bias, spread around it."""

    bias: float
    spread: float
    freedom: float
    number: int


class Predictor:
    """Answers for one table; the residuals are worked out once. `warning` belongs beside every figure, if any."""

    def __init__(self, table: CostTable, warning: str | None = None) -> None:
        self.table, self.warning = table, warning
        self._known = known = {key: x for key, x in table.wholes.items() if all(y in table.costs for y in x.parts)}
        self._residuals = summarise([_residual(table, whole) for whole in known.values()])
        self._of_bytes = summarise([x for whole in known.values() if (x := _bytes_residual(table, whole)) is not None])

    @property
    def source(self) -> str:
        """Where the figures come from, in words."""
        return "predicted" if self.warning is None else f"predicted for another machine, {self.table.key.card}"

    def predict(self, architecture: Architecture) -> Estimate:
        """Return the seconds per step; of what was measured whole, those. Raises MissingPartsError."""
        parts, found = parts_of(architecture), self._residuals_of(architecture)
        total = self._sum(parts)
        error = 0.0 if self.measured(architecture) else self._error(parts) / total
        return Estimate(
            median=total * math.exp(found.bias), spread=math.hypot(error, found.spread), freedom=found.freedom
        )

    def relative(self, architecture: Architecture, anchor: Architecture) -> Estimate:
        """Return the ratio of throughputs, architecture to anchor; errors of what both have in common cancel.

        Raises MissingPartsError.
        """
        parts, others = parts_of(architecture), parts_of(anchor)
        own, base = self._residuals_of(architecture), self._residuals_of(anchor)
        if parts == others and architecture.id == anchor.id:
            self._check(parts)
            return Estimate(median=1.0, spread=0.0, freedom=own.freedom)
        total = self._sum(parts)
        differing = {name: parts.get(name, 0) - others.get(name, 0) for name in {**parts, **others}}
        known = self.measured(architecture) and self.measured(anchor)
        error = 0.0 if known else self._error(differing) / total
        return Estimate(
            median=self._sum(others) / total * math.exp(base.bias - own.bias),
            spread=math.hypot(error, own.spread, base.spread),
            freedom=min(own.freedom, base.freedom),
        )

    def peak_memory(self, architecture: Architecture) -> Estimate | None:
        """Return the bytes at the peak, None where the table has none. Raises MissingPartsError."""
        parts = parts_of(architecture)
        self._check(parts)
        costs = {name: self.table.costs[name].bytes for name in parts}
        total = sum(count * (costs[name] or 0.0) for name, count in parts.items())
        if any(cost is None for cost in costs.values()) or total <= 0:
            return None
        found = self._of_bytes
        return Estimate(median=total * math.exp(found.bias), spread=found.spread, freedom=found.freedom)

    def sum_of_parts(self, architecture: Architecture) -> float:
        """Return the seconds per step without what whole patterns have shown besides. Raises MissingPartsError."""
        return self._sum(parts_of(architecture))

    def measured(self, architecture: Architecture) -> Whole | None:
        """Return what this very pattern took as a whole, if the table has it."""
        parts = parts_of(architecture)
        alike = any(whole.parts == parts for whole in self._known.values())  # cheaper than the id
        return self._known.get(architecture.id) if alike else None

    def _residuals_of(self, architecture: Architecture) -> Residuals:
        """Return what is to be expected beside the sum of the parts: what was seen, where it was measured whole."""
        if (whole := self.measured(architecture)) is None:
            return self._residuals
        error = whole.error / whole.seconds
        return Residuals(bias=_residual(self.table, whole), spread=error, freedom=max(1, whole.rounds - 1), number=1)

    def _sum(self, parts: Mapping[str, int]) -> float:
        self._check(parts)
        return sum(count * self.table.costs[name].seconds for name, count in parts.items())

    def _error(self, parts: Mapping[str, int]) -> float:
        return math.sqrt(sum((count * self.table.costs[name].error) ** 2 for name, count in parts.items()))

    def _check(self, parts: Mapping[str, int]) -> None:
        if missing := [name for name in parts if name not in self.table.costs]:
            raise MissingPartsError(missing)


def summarise(residuals: Sequence[float]) -> Residuals:
    """Return what is to be expected of one more pattern, given the log residuals of some."""
    number = len(residuals)
    if number == 0:
        return Residuals(bias=0.0, spread=PRIOR_SPREAD, freedom=PRIOR_WEIGHT, number=0)
    bias = statistics.fmean(residuals)
    squares = PRIOR_WEIGHT * PRIOR_SPREAD**2 + math.fsum((x - bias) ** 2 for x in residuals)
    freedom = PRIOR_WEIGHT + number - 1
    return Residuals(bias=bias, spread=math.sqrt(squares / freedom * (1 + 1 / number)), freedom=freedom, number=number)


def residual_figures(table: CostTable, confidence: float = 0.95) -> dict[str, Any]:
    """Return for each whole pattern how the table without it would have predicted it, and the summary."""
    known = {name: x for name, x in table.wholes.items() if all(part in table.costs for part in x.parts)}
    residuals = {name: _residual(table, whole) for name, whole in known.items()}
    patterns: list[dict[str, Any]] = []
    for name, whole in known.items():
        rest = summarise([value for other, value in residuals.items() if other != name])
        predicted = whole.seconds * math.exp(rest.bias - residuals[name])
        estimate = Estimate(median=predicted, spread=rest.spread, freedom=rest.freedom)
        low, high = estimate.interval(confidence)
        patterns.append(
            {
                "pattern": whole.label,
                "sum_of_parts_ms": 1000 * whole.seconds * math.exp(-residuals[name]),
                "predicted_without_it_ms": 1000 * predicted,
                "measured_ms": 1000 * whole.seconds,
                "error": whole.seconds / predicted - 1,
                "covered": low <= whole.seconds <= high,
            }
        )
    errors = sorted(abs(x["error"]) for x in patterns)
    found = summarise(list(residuals.values()))
    return {
        "number": len(patterns),
        "seen_by_no_part": math.expm1(found.bias),
        "spread": found.spread,
        "median_error": statistics.median(errors) if errors else None,
        "largest_error": errors[-1] if errors else None,
        "covered": sum(x["covered"] for x in patterns),
        "confidence": confidence,
        "patterns": patterns,
    }


def _residual(table: CostTable, whole: Whole) -> float:
    total = sum(count * table.costs[name].seconds for name, count in whole.parts.items())
    return math.log(whole.seconds / total)


def _bytes_residual(table: CostTable, whole: Whole) -> float | None:
    costs = {name: table.costs[name].bytes for name in whole.parts}
    total = sum(count * (costs[name] or 0.0) for name, count in whole.parts.items())
    known = whole.bytes is not None and all(cost is not None for cost in costs.values()) and total > 0
    return math.log((whole.bytes or 1.0) / total) if known else None
