"""What a study has on record, one row per trial, free of Optuna."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archsearch.pattern import compact
from archsearch.search.budget import Check, state_bytes
from archsearch.search.candidates import Candidate
from archsearch.search.space import Space

OUTCOMES = ("completed", "refused", "illegal", "failed", "duplicate", "running", "waiting")


@dataclass(frozen=True, kw_only=True)
class Description:
    """A candidate in figures and words; `parameters_change` is relative to the base."""

    key: str
    pattern: str
    placement: str
    count: int
    shape: str
    parameters: int | None = None
    parameters_change: float | None = None
    state_bytes: int | None = None
    architecture: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a trial ended: metrics and seconds per task, and what the budget said.

    `cause` is why it failed (failures.py), `interruptions` are the ends after which it was run again, `memory` is the
    peak in bytes.
    """

    outcome: str
    reason: str | None = None
    checks: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measurement: Mapping[str, Any] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    duplicate_of: int | None = None
    cause: str | None = None
    interruptions: Sequence[Mapping[str, str]] = ()
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def violation(self) -> float:
        """By which fractions the budget's limits were missed, in sum."""
        return math.fsum(max(0.0, check["violation"]) for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial. `given` names the candidates that every study starts with."""

    number: int
    given: str | None
    description: Description | None
    result: Result

    @property
    def outcome(self) -> str:
        return self.result.outcome

    def values(self, space: Space) -> list[float | None]:
        """Return the objectives' values, None where there are none."""
        return [objective_value(self.result.metrics, objective) for objective in space.objectives]

    @property
    def ratio(self) -> float | None:
        """Training throughput relative to the budget's anchor."""
        return self.result.measurement["ratio"] if self.result.measurement else None

    @property
    def is_predicted(self) -> bool:
        """Whether the throughput comes from a cost table instead of this very model's steps."""
        return bool(self.result.measurement) and (self.result.measurement or {}).get("source") == "predicted"

    @property
    def warning(self) -> str | None:
        """What belongs beside a throughput that was predicted for another machine."""
        return (self.result.measurement or {}).get("warning")


def objective_value(metrics: Mapping[str, Mapping[str, float]], objective: Any) -> float | None:
    """Return an objective's value from the metrics of all tasks."""
    return metrics.get(objective.task, {}).get(objective.key)


def describe(space: Space, candidate: Candidate) -> Description:
    """Describe a candidate."""
    architecture = candidate.architecture
    common: dict[str, Any] = {
        "key": candidate.key,
        "placement": candidate.placement,
        "count": candidate.count,
        "shape": shape(space, candidate),
    }
    if architecture is None:
        return Description(pattern=f"{candidate.count} x {space.insert}", **common)
    parameters = architecture.num_parameters()
    return Description(
        pattern=compact(architecture.pattern),
        parameters=parameters,
        parameters_change=parameters / space.base.num_parameters() - 1,
        state_bytes=state_bytes(architecture),
        architecture=architecture.to_dict(),
        **common,
    )


def shape(space: Space, candidate: Candidate) -> str:
    """Return the inserted mixer's head counts and dims, and what else the space searches."""
    if candidate.options is None:
        return ""
    shown = candidate.options.shape()
    others = [name for name in space.choices if not name.endswith(("_heads", "_dim", "num_groups"))]
    return ", ".join([shown, *(f"{name} {getattr(candidate.options, name)}" for name in others)])


def failed_checks(checks: Sequence[Check]) -> str:
    """Return why the budget refuses a candidate; empty where it does not."""
    return "; ".join(check.reason for check in checks if check.violation > 0)


def plain(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as plain values."""
    return [dataclasses.asdict(check) for check in checks]
