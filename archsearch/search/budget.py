"""What a candidate may cost: exact limits by formula, measured ones by a verdict on a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from archsearch.architecture import Architecture, resolve
from archsearch.config import ConfigError, Where, fill, quantity

if TYPE_CHECKING:
    from archsearch.throughput.measure import Measurement

STATE_BYTES = 4  # recurrent states are kept in float32
BARELY = 1e-6  # the violation of a limit that was met in the median but not surely


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A bound in base units. `relative_to` is what the written fraction was taken of."""

    at_least: float | None = None
    at_most: float | None = None
    relative_to: str | None = None

    def violation(self, value: float) -> float:
        """Return by which fraction of the limit `value` misses it; at most 0 where it is met."""
        if self.at_most is not None:
            return value / self.at_most - 1
        assert self.at_least is not None
        return 1 - value / self.at_least

    def __str__(self) -> str:
        return f"at least {self.at_least:,.6g}" if self.at_least is not None else f"at most {self.at_most:,.6g}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One limit held against one candidate; `violation` at most 0 means that it is met."""

    name: str
    value: float
    limit: str
    violation: float
    verdict: str

    @property
    def reason(self) -> str:
        """The refusal in words."""
        sure = " (undecided at the time limit, counts as infeasible)" if self.verdict == "undecided" else ""
        return f"{self.name} {self.value:,.6g}, must be {self.limit}{sure}"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Training tokens/s: a fraction of the anchor's (`fraction`), or a number of its own."""

    at_least: float
    fraction: bool
    anchor: Architecture
    anchor_name: str


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All limits of a space, and the conditions under which the measured ones are measured (seconds, tokens)."""

    parameters: tuple[Limit, ...] = ()
    state_bytes: tuple[Limit, ...] = ()
    train_tokens_per_second: Throughput | None = None
    peak_memory: Limit | None = None
    sequence_length: int = 512
    batch_size: int = 8
    precision: str = "fp32"
    confidence: float = 0.95
    time_limit: float = 90.0

    @property
    def measured(self) -> bool:
        """Whether any limit needs a training step to be timed."""
        return self.train_tokens_per_second is not None or self.peak_memory is not None


def parse_budget(values: Mapping[str, Any], base: Architecture, where: Where) -> Budget:
    """Read the budget. `of` makes a limit a fraction of another architecture's figure. Raises ConfigError."""
    written = fill(_Written, values, where)
    for name in ("sequence_length", "batch_size", "time_limit"):
        if getattr(written, name) <= 0:
            raise (where / name).error(f"must be positive; got {getattr(written, name)}")
    if not 0.5 < written.confidence < 1:
        raise (where / "confidence").error(f"must lie between 0.5 and 1; got {written.confidence}")
    if written.precision not in ("fp32", "bf16", "fp16"):
        raise (where / "precision").error(f"must be fp32, bf16 or fp16; got {written.precision!r}")
    return Budget(
        parameters=_exact(written.parameters, "parameters", base, where / "parameters"),
        state_bytes=_exact(written.state_bytes, "state_bytes", base, where / "state_bytes"),
        train_tokens_per_second=_throughput(written.train_tokens_per_second, base, where / "train_tokens_per_second"),
        peak_memory=_memory(written.peak_memory, where / "peak_memory"),
        sequence_length=written.sequence_length,
        batch_size=written.batch_size,
        precision=written.precision,
        confidence=written.confidence,
        time_limit=written.time_limit,
    )


def check_exact(budget: Budget, architecture: Architecture) -> list[Check]:
    """Hold the limits that a formula answers against a candidate."""
    checks = []
    for name in ("parameters", "state_bytes"):
        value = FIGURES[name](architecture)
        for limit in getattr(budget, name):
            side = (
                "" if len(getattr(budget, name)) == 1 else f".{'at_least' if limit.at_least is not None else 'at_most'}"
            )
            checks.append(_check(f"{name}{side}", value, limit))
    return checks


def check_measured(budget: Budget, measurement: Measurement) -> list[Check]:
    """Hold the measured limits against a candidate's measurement."""
    checks = []
    if budget.train_tokens_per_second:
        checks.append(_check_throughput(budget.train_tokens_per_second, measurement))
    if budget.peak_memory and measurement.peak_memory_bytes is not None:
        checks.append(_check("peak_memory", measurement.peak_memory_bytes, budget.peak_memory))
    return checks


def measure(budget: Budget, candidate: Architecture) -> Measurement:
    """Time the candidate's training steps against the anchor's, rounds interleaved, until the verdict is known."""
    from archsearch.throughput.measure import Conditions, compare

    conditions = Conditions(
        batch_size=budget.batch_size,
        length=budget.sequence_length,
        precision=budget.precision,
        time_limit=budget.time_limit,
        confidence=budget.confidence,
    )
    throughput = budget.train_tokens_per_second
    if throughput is None:
        return compare(candidate, candidate, conditions)
    at_least = throughput.at_least if throughput.fraction else None
    return compare(candidate, throughput.anchor, conditions, at_least=at_least)


def to_plain(budget: Budget) -> dict[str, Any]:
    """Return plain values for a trial's config.yaml."""
    plain = asdict(budget)
    if throughput := budget.train_tokens_per_second:
        plain["train_tokens_per_second"]["anchor"] = throughput.anchor.to_dict()
    return {**plain, "parameters": list(plain["parameters"]), "state_bytes": list(plain["state_bytes"])}


def from_plain(plain: Mapping[str, Any], where: Where) -> Budget:
    """Return what `to_plain` wrote."""
    throughput, memory = plain["train_tokens_per_second"], plain["peak_memory"]
    if throughput:
        anchor = Architecture.from_dict(throughput["anchor"], where / "train_tokens_per_second.anchor")
        throughput = Throughput(**{**throughput, "anchor": anchor})
    return Budget(
        **{
            **plain,
            "parameters": tuple(Limit(**limit) for limit in plain["parameters"]),
            "state_bytes": tuple(Limit(**limit) for limit in plain["state_bytes"]),
            "train_tokens_per_second": throughput,
            "peak_memory": Limit(**memory) if memory else None,
        }
    )


def state_bytes(architecture: Architecture) -> int:
    """Return the bytes of one sequence's recurrent states over all layers (no convolution taps, keys or values)."""
    return architecture.state_size * STATE_BYTES


FIGURES = {"parameters": lambda architecture: architecture.num_parameters(), "state_bytes": state_bytes}


@dataclass(frozen=True, kw_only=True)
class _Counted:
    at_least: float | None = quantity("count", default=None)
    at_most: float | None = quantity("count", default=None)
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Stored:
    at_least: float | None = quantity("bytes", default=None)
    at_most: float | None = quantity("bytes", default=None)
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Speed:
    at_least: float = quantity("count")
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Memory:
    at_most: float = quantity("bytes")


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A budget as its YAML spells it."""

    train_tokens_per_second: _Speed | None = None
    peak_memory: _Memory | None = None
    parameters: _Counted | None = None
    state_bytes: _Stored | None = None
    sequence_length: int = 512
    batch_size: int = 8
    precision: str = "fp32"
    confidence: float = 0.95
    time_limit: float = quantity("seconds", default=90.0)


def _exact(written: _Counted | _Stored | None, name: str, base: Architecture, where: Where) -> tuple[Limit, ...]:
    if written is None:
        return ()
    if written.at_least is None and written.at_most is None:
        raise where.error("must have at_least or at_most; got neither")
    scale = 1.0 if written.of is None else FIGURES[name](_reference(written.of, base, where / "of"))
    limits = []
    for side in ("at_least", "at_most"):
        if (value := getattr(written, side)) is not None:
            if value * scale <= 0:
                raise (where / side).error(f"must be positive; got {value}{f' of {scale:,.0f}' if written.of else ''}")
            limits.append(Limit(**{side: value * scale}, relative_to=written.of))
    return tuple(limits)


def _throughput(written: _Speed | None, base: Architecture, where: Where) -> Throughput | None:
    if written is None:
        return None
    if written.at_least <= 0:
        raise (where / "at_least").error(f"must be positive; got {written.at_least}")
    if written.of is None and written.at_least <= 10:
        rule = "is a number of tokens/s without `of`; write `of: base` for a fraction of the base's"
        raise (where / "at_least").error(f"{rule}; got {written.at_least}")
    return Throughput(
        at_least=written.at_least,
        fraction=written.of is not None,
        anchor=_reference(written.of or "base", base, where / "of"),
        anchor_name=written.of or "base",
    )


def _memory(written: _Memory | None, where: Where) -> Limit | None:
    if written is None:
        return None
    if written.at_most <= 0:
        raise (where / "at_most").error(f"must be positive; got {written.at_most}")
    return Limit(at_most=written.at_most)


def _reference(text: str, base: Architecture, where: Where) -> Architecture:
    """Return the architecture that `of` names: base, a pattern with the base's letters and sizes, or a file."""
    if text == "base":
        return base
    try:
        return resolve(text) if "." in text or "/" in text else base.with_pattern(text)
    except ConfigError as error:
        raise where.error(str(error)) from None
    except ValueError as error:
        raise where.error(f"must be base, a pattern or a file; {str(error).removeprefix('pattern: ')}") from None


def _check(name: str, value: float, limit: Limit) -> Check:
    violation = limit.violation(value)
    verdict = "feasible" if violation <= 0 else "infeasible"
    return Check(name=name, value=float(value), limit=str(limit), violation=violation, verdict=verdict)


def _check_throughput(throughput: Throughput, measurement: Measurement) -> Check:
    """Judge by P(ratio >= limit), or for a number of tokens/s by the confidence interval of the candidate's own."""
    if throughput.fraction:
        value, verdict = measurement.ratio, measurement.verdict or "undecided"
        limit = f"at least {throughput.at_least:g} of {throughput.anchor_name}"
    else:
        value = measurement.tokens_per_second
        low, high = (ratio / measurement.ratio * value for ratio in (measurement.ratio_low, measurement.ratio_high))
        verdict = "infeasible" if high < throughput.at_least else "undecided"
        verdict = "feasible" if low >= throughput.at_least else verdict
        limit = f"at least {throughput.at_least:,.6g}"
    violation = 1 - value / throughput.at_least
    violation = min(violation, 0.0) if verdict == "feasible" else max(violation, BARELY)
    return Check(
        name="train_tokens_per_second", value=float(value), limit=limit, violation=float(violation), verdict=verdict
    )
