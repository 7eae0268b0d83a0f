"""What a candidate may cost: exact limits by formula, measured ones by a verdict on a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archsearch.architecture import Architecture, resolve
from archsearch.config import ConfigError, Where, fill, quantity
from archsearch.search.keys import check_name
from archsearch.throughput.cost_table import BLOCKS, PRECISIONS

STATE_BYTES = 4  # recurrent states are kept in float32
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
SPEEDS = {"train_tokens_per_second": "train", "decode_tokens_per_second": "decode"}
"""What is limited, and in which mode it is measured."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A bound in base units. `relative_to` is what the written fraction was taken of; `length` is of a cache."""

    at_least: float | None = None
    at_most: float | None = None
    relative_to: str | None = None
    length: int | None = None

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
    """One limit held against one candidate; `violation` at most 0 means that it is met.

    `source` says where the value is from: formula, predicted or measured; `words` is the whole of it for people.
    `value` is None where nothing could answer.
    """

    name: str
    value: float | None
    limit: str
    violation: float
    verdict: str
    probability: float = 1.0
    source: str = "formula"
    words: str = ""

    @property
    def reason(self) -> str:
        """The refusal in words."""
        assert self.words or self.value is not None
        return self.words or f"{self.name} {self.value:,.6g}, must be {self.limit}"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Tokens/s: a fraction of the anchor's (`fraction`), or a number of its own; `length` is a context in decoding."""

    at_least: float
    fraction: bool
    anchor: Architecture
    anchor_name: str
    batch_size: int
    length: int

    def __str__(self) -> str:
        return (
            f"at least {self.at_least:g} of {self.anchor_name}" if self.fraction else f"at least {self.at_least:,.6g}"
        )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All limits of a space, and the conditions under which the measured ones are measured (seconds, tokens).

    `tables` are the cost tables that the space names; `base` is the id of its base, which counts as feasible in doubt.
    `wanted` is what objectives want to be measured, limited or not; speeds then in turns with `origin`, the base.
    """

    parameters: tuple[Limit, ...] = ()
    state_bytes: tuple[Limit, ...] = ()
    train_tokens_per_second: Throughput | None = None
    decode_tokens_per_second: Throughput | None = None
    peak_memory: Limit | None = None
    sequence_length: int = 512
    batch_size: int = 8
    precision: str = "fp32"
    confidence: float = 0.95
    time_limit: float = 90.0
    blocks: str = "eager"
    tables: tuple[str, ...] = ()
    base: str = ""
    wanted: tuple[str, ...] = ()
    origin: Mapping[str, Any] | None = None

    @property
    def measured(self) -> bool:
        """Whether any limit or objective needs something to be timed."""
        return bool(self.modes)

    @property
    def modes(self) -> tuple[str, ...]:
        """What has to be timed: `train`, `decode`."""
        limits = (*SPEEDS, "peak_memory")
        asked = {name for name in limits if getattr(self, name) is not None} | set(self.wanted)
        modes = {SPEEDS.get(name, "train") for name in asked}
        return tuple(mode for mode in SPEEDS.values() if mode in modes)

    def speed(self, mode: str) -> Throughput | None:
        """Return the limit on tokens/s in a mode."""
        return {"train": self.train_tokens_per_second, "decode": self.decode_tokens_per_second}.get(mode)

    def wants_speed(self, mode: str) -> bool:
        """Return whether an objective wants the tokens/s in a mode, and not only what a limit needs to know."""
        return any(SPEEDS[name] == mode for name in self.wanted if name in SPEEDS)

    def anchor(self, mode: str) -> Architecture | None:
        """Return what a mode's speed is a fraction of, None where nothing is."""
        speed = self.speed(mode)
        if speed is not None and speed.fraction:
            return speed.anchor
        if self.origin is None or not self.wants_speed(mode):
            return None
        return Architecture.from_dict(self.origin, Where("budget", "origin"))

    def conditions(self, mode: str) -> dict[str, Any]:
        """Return under which conditions a mode is timed, as `throughput.conditions.Conditions` takes them."""
        speed = self.speed(mode)
        return {
            "mode": mode,
            "blocks": self.blocks if mode == "train" else "eager",
            "precision": self.precision,
            "batch_size": speed.batch_size if speed else self.batch_size,
            "length": speed.length if speed else self.sequence_length,
            "confidence": self.confidence,
            "time_limit": self.time_limit,
        }


def parse_budget(values: Mapping[str, Any], base: Architecture, where: Where) -> Budget:
    """Read the budget. `of` makes a limit a fraction of another architecture's figure. Raises ConfigError."""
    written = fill(_Written, values, where)
    for name in ("sequence_length", "batch_size", "time_limit"):
        if not 0 < getattr(written, name) < math.inf:
            raise (where / name).error(f"must be positive and finite; got {getattr(written, name)}")
    if not 0.5 < written.confidence < 1:
        raise (where / "confidence").error(f"must lie between 0.5 and 1; got {written.confidence}")
    if written.precision not in PRECISIONS:
        raise (where / "precision").error(f"must be fp32, bf16 or fp16; got {written.precision!r}")
    check_name(written.blocks, BLOCKS, "way to run blocks", where / "blocks")
    return Budget(
        parameters=_exact(written.parameters, "parameters", base, written.precision, where / "parameters"),
        state_bytes=_exact(written.state_bytes, "state_bytes", base, written.precision, where / "state_bytes"),
        train_tokens_per_second=_throughput(written, "train_tokens_per_second", base, where),
        decode_tokens_per_second=_throughput(written, "decode_tokens_per_second", base, where),
        peak_memory=_memory(written.peak_memory, where / "peak_memory"),
        sequence_length=written.sequence_length,
        batch_size=written.batch_size,
        precision=written.precision,
        confidence=written.confidence,
        time_limit=written.time_limit,
        blocks=written.blocks,
        tables=_tables(written.table, where / "table"),
        base=base.id,
    )


def check_exact(budget: Budget, architecture: Architecture) -> list[Check]:
    """Hold the limits that a formula answers against a candidate."""
    checks = []
    for name in ("parameters", "state_bytes"):
        for limit in getattr(budget, name):
            value = figure(name, architecture, limit.length, budget.precision)
            side = (
                "" if len(getattr(budget, name)) == 1 else f".{'at_least' if limit.at_least is not None else 'at_most'}"
            )
            checks.append(hold(f"{name}{side}", value, limit))
    return checks


def hold(name: str, value: float, limit: Limit, source: str = "formula", probability: float = 1.0) -> Check:
    """Hold a limit against a value that is known, or as good as known with a probability."""
    violation = limit.violation(value)
    sure = "" if source == "formula" else f" ({source})"
    sure = f", p = {min(probability, 0.999):.3g}{sure}" if probability < 1 else sure
    return Check(
        name=name,
        value=float(value),
        limit=str(limit),
        violation=violation,
        verdict="feasible" if violation <= 0 else "infeasible",
        probability=probability,
        source=source,
        words=f"{name} {_shown(name, value)}, must be {_shown(name, limit)}{sure}",
    )


def _shown(name: str, value: float | Limit) -> str:
    """Return a value or a limit for people: bytes from one MiB on with a unit."""
    if isinstance(value, Limit):
        side, bound = ("at least", value.at_least) if value.at_least is not None else ("at most", value.at_most)
        assert bound is not None
        return f"{side} {_shown(name, bound)}"
    if not name.startswith(("peak_memory", "state_bytes")) or value < 2**20:
        return f"{value:,.6g}"
    unit, size = ("GiB", 2**30) if value >= 2**30 else ("MiB", 2**20)
    return f"{value / size:.4g} {unit}"


def to_plain(budget: Budget) -> dict[str, Any]:
    """Return plain values for a trial's config.yaml."""
    plain = asdict(budget)
    for name in SPEEDS:
        if throughput := getattr(budget, name):
            plain[name]["anchor"] = throughput.anchor.to_dict()
    return {**plain, **{name: list(plain[name]) for name in ("parameters", "state_bytes", "tables", "wanted")}}


def from_plain(plain: Mapping[str, Any], where: Where) -> Budget:
    """Return what `to_plain` wrote."""
    read = {**plain, "tables": tuple(plain["tables"]), "wanted": tuple(plain["wanted"])}
    for name in SPEEDS:
        if throughput := plain[name]:
            anchor = Architecture.from_dict(throughput["anchor"], where / f"{name}.anchor")
            read[name] = Throughput(**{**throughput, "anchor": anchor})
    for name in ("parameters", "state_bytes"):
        read[name] = tuple(Limit(**limit) for limit in plain[name])
    return Budget(**{**read, "peak_memory": Limit(**plain["peak_memory"]) if plain["peak_memory"] else None})


def state_bytes(architecture: Architecture) -> int:
    """Return the bytes of one sequence's recurrent states over all layers (no convolution taps, keys or values)."""
    return architecture.state_size * STATE_BYTES


def figure(name: str, architecture: Architecture, length: int | None = None, precision: str = "fp32") -> float:
    """Return a candidate's parameters or bytes of state; with a length of all that decoding keeps after so many tokens.

    The latter are recurrent states, convolution taps, keys and values.
    """
    if name == "parameters":
        return architecture.num_parameters()
    return state_bytes(architecture) if length is None else architecture.cache_bytes(length, DTYPES[precision])


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
    length: int | None = quantity("count", default=None)


@dataclass(frozen=True, kw_only=True)
class _Speed:
    at_least: float = quantity("count")
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class _DecodeSpeed:
    """`batch_size` sequences that go on after `context` tokens; by default the budget's batch and length."""

    at_least: float = quantity("count")
    of: str | None = None
    batch_size: int | None = None
    context: int | None = quantity("count", default=None)


@dataclass(frozen=True, kw_only=True)
class _Memory:
    at_most: float = quantity("bytes")


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A budget as its YAML spells it."""

    train_tokens_per_second: _Speed | None = None
    decode_tokens_per_second: _DecodeSpeed | None = None
    peak_memory: _Memory | None = None
    parameters: _Counted | None = None
    state_bytes: _Stored | None = None
    sequence_length: int = 512
    batch_size: int = 8
    precision: str = "fp32"
    confidence: float = 0.95
    time_limit: float = quantity("seconds", default=90.0)
    blocks: str = "eager"
    table: Any = None


def _exact(
    written: _Counted | _Stored | None, name: str, base: Architecture, precision: str, where: Where
) -> tuple[Limit, ...]:
    if written is None:
        return ()
    if written.at_least is None and written.at_most is None:
        raise where.error("must have at_least or at_most; got neither")
    length = written.length if isinstance(written, _Stored) else None
    if length is not None and length < 1:
        raise (where / "length").error(f"must be at least 1; got {length}")
    scale = 1.0
    if written.of is not None:
        scale = figure(name, _reference(written.of, base, where / "of"), length, precision)
    limits = []
    for side in ("at_least", "at_most"):
        if (value := getattr(written, side)) is not None:
            if value * scale <= 0:
                raise (where / side).error(f"must be positive; got {value}{f' of {scale:,.0f}' if written.of else ''}")
            limits.append(Limit(**{side: value * scale}, relative_to=written.of, length=length))
    return tuple(limits)


def _throughput(budget: _Written, name: str, base: Architecture, where: Where) -> Throughput | None:
    written, where = getattr(budget, name), where / name
    if written is None:
        return None
    if not 0 < written.at_least < math.inf:
        raise (where / "at_least").error(f"must be positive and finite; got {written.at_least}")
    if written.of is None and written.at_least <= 10:
        rule = "is a number of tokens/s without `of`; write `of: base` for a fraction of the base's"
        raise (where / "at_least").error(f"{rule}; got {written.at_least}")
    sizes = {"batch_size": budget.batch_size, "context": budget.sequence_length}
    for size in sizes:
        if (value := getattr(written, size, None)) is not None:
            if value < 1:
                raise (where / size).error(f"must be at least 1; got {value}")
            sizes[size] = int(value)
    return Throughput(
        at_least=written.at_least,
        fraction=written.of is not None,
        anchor=_reference(written.of or "base", base, where / "of"),
        anchor_name=written.of or "base",
        batch_size=sizes["batch_size"],
        length=sizes["context"],
    )


def _tables(written: Any, where: Where) -> tuple[str, ...]:
    """Return the paths of the tables that a space names, relative to its own file."""
    names = written if isinstance(written, list) else [] if written is None else [written]
    for name in names:
        if not isinstance(name, str) or not name:
            raise where.error(f"must be the path of a cost table, or a list of them; got {written!r}")
    return tuple(str(Path(where.source).parent / name) for name in names)


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
