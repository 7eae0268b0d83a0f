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
from archsearch.search.measures import objective_figure
from archsearch.search.rungs import Rung
from archsearch.search.space import Space
from archsearch.search.tasks import Objective


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
    """How a trial ended (completed, pruned, refused, illegal, failed, duplicate), or that it is running or waiting.

    Metrics and seconds are per task; besides, what the budget said, and the figures that objectives want.

    `trained_tokens` are those of a pruned trial, which are fewer than all. `cause` is why it failed (failures.py),
    `interruptions` are the ends after which it was run again, `memory` is the peak in bytes.
    """

    outcome: str
    reason: str | None = None
    checks: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measurement: Mapping[str, Any] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    duplicate_of: int | None = None
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained_tokens: int | None = None
    cause: str | None = None
    interruptions: Sequence[Mapping[str, str]] = ()
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def violation(self) -> float:
        """By which fractions the budget's limits were missed, in sum."""
        return math.fsum(max(0.0, check["violation"]) for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial. `given` names the candidates that every study starts with; `rungs` are those that it has reached."""

    number: int
    given: str | None
    description: Description | None
    result: Result
    rungs: Sequence[Rung] = ()

    @property
    def outcome(self) -> str:
        return self.result.outcome

    def values(self, space: Space) -> list[float | None]:
        """Return the objectives' values, None where there are none."""
        return [objective_value(self.result.metrics, x, self.result.figures) for x in space.objectives]

    @property
    def ratio(self) -> float | None:
        """Training throughput relative to the budget's anchor, None where there is none or another mode was timed."""
        return self._trained("ratio")

    @property
    def tokens_per_second(self) -> float | None:
        """Training throughput, None where another mode was timed."""
        return self._trained("tokens_per_second")

    def _trained(self, name: str) -> float | None:
        found = self.result.measurement
        return found[name] if found and found.get("mode", "train") == "train" else None

    @property
    def is_predicted(self) -> bool:
        """Whether the throughput comes from a cost table instead of this very model's steps."""
        return bool(self.result.measurement) and (self.result.measurement or {}).get("source") == "predicted"

    @property
    def warning(self) -> str | None:
        """What belongs beside a throughput that was predicted for another machine."""
        return (self.result.measurement or {}).get("warning")


def objective_value(
    metrics: Mapping[str, Mapping[str, float]], objective: Objective, figures: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Return an objective's value from the metrics of all tasks and the figures of the candidate."""
    if objective.measure:
        found = objective_figure(figures, objective)
        return found[0] if found else None
    return metrics.get(objective.task, {}).get(objective.key)


def describe(space: Space, candidate: Candidate) -> Description:
    """Describe a candidate."""
    architecture = candidate.architecture
    common: dict[str, Any] = {
        "key": candidate.key,
        "placement": placement(candidate),
        "count": candidate.count,
        "shape": shape(space, candidate),
    }
    if architecture is None:
        wanted = ", ".join(f"{x.count} x {x.letter}" for x in candidate.fillings if x.count)
        on = f" on {candidate.pattern}" if len(space.patterns) > 1 else ""
        return Description(pattern=f"{wanted}{on}", **common)
    parameters = architecture.num_parameters()
    return Description(
        pattern=compact(architecture.pattern),
        parameters=parameters,
        parameters_change=parameters / space.base.num_parameters() - 1,
        state_bytes=state_bytes(architecture),
        architecture=architecture.to_dict(),
        **common,
    )


def placement(candidate: Candidate) -> str:
    """Return the placement, of several letters by letter."""
    if len(candidate.fillings) == 1:
        return candidate.fillings[0].placement
    return ", ".join(f"{x.letter} {x.placement}" for x in candidate.fillings if x.count) or "none"


def shape(space: Space, candidate: Candidate) -> str:
    """Return the inserted mixers' head counts and dims, and what else the space searches; of several by letter."""
    found = {}
    for x in space.replacements:
        if options := candidate.options.get(x.letter):
            others = [name for name in x.choices if not name.endswith(("_heads", "_dim", "num_groups"))]
            found[x.letter] = ", ".join([options.shape(), *(f"{name} {getattr(options, name)}" for name in others)])
    if len(space.replacements) == 1:
        return "".join(found.values())
    return "; ".join(f"{letter}: {text}" for letter, text in found.items())


def failed_checks(checks: Sequence[Check]) -> str:
    """Return why the budget refuses a candidate; empty where it does not."""
    return "; ".join(check.reason for check in checks if check.violation > 0)


def plain(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as plain values."""
    return [dataclasses.asdict(check) for check in checks]
