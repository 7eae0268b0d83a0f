"""What each block costs on one machine under one set of conditions, as a file.

A step of any pattern is taken as `fixed + sum of the marginals of its blocks`. Fixed are embedding, head and what the
optimizer does for them; a marginal is what one more block of an option (mixer, MLP and their optimizer's share) adds.
How far that is from the truth is in the file too: whole patterns that were measured besides.

Nothing here needs torch, so that a search can ask without loading it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from archsearch.architecture import Architecture
from archsearch.config import Where, fill
from archsearch.files import write_atomic

FORMAT = 1
DEFAULT_VOCABULARY = 256
MODES = ("train", "prefill", "decode")
BLOCKS = ("eager", "compile", "cuda_graphs")
PRECISIONS = ("fp32", "bf16", "fp16")
LEAST_SECONDS, MOST_SECONDS, MOST_BYTES, MOST_BLOCKS = 1e-9, 1e6, 1e18, 10**6
"""No step of a model is beyond these, and arithmetic with what is would overflow."""
MACHINE = ("card", "driver", "torch", "triton", "fla", "kernels")


@dataclass(frozen=True, kw_only=True)
class Key:
    """Where and under which conditions a table holds; `kernels` is a hash of the code that a step runs."""

    card: str
    driver: str
    torch: str
    triton: str
    fla: str
    kernels: str
    mode: str
    blocks: str
    precision: str
    batch_size: int
    length: int

    def differences(self, other: Key) -> list[str]:
        """Return in which fields another key differs, as `field: own, not other's`."""
        values = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"{name} {values[0][name]}, not {values[1][name]}" for name in values[0] if differ(name, *values)]

    def same_conditions(self, other: Key) -> bool:
        """Return whether the same thing was timed, on whatever machine."""
        values = dataclasses.asdict(self), dataclasses.asdict(other)
        return not any(differ(name, *values) for name in values[0] if name not in MACHINE)

    def describe(self) -> str:
        """Return machine and conditions in words."""
        versions = f"driver {self.driver}, torch {self.torch}, triton {self.triton}, kernels {self.kernels}"
        return (
            f"{self.card} ({versions}; {self.mode}, {self.blocks}, {self.precision}, {self.batch_size} x {self.length})"
        )


def differ(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one[name] != other[name])


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds per step with their standard error, and bytes at the peak (None where they were not counted)."""

    label: str
    seconds: float
    error: float
    bytes: float | None = None
    rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A whole pattern that was measured: what it consists of and what it took."""

    label: str
    parts: Mapping[str, int]
    seconds: float
    error: float
    bytes: float | None = None
    rounds: int = 0


Timed = TypeVar("Timed", Cost, Whole)


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """The model beside which everything was measured, and its seconds per step when the table was begun."""

    architecture: Mapping[str, Any]
    seconds: float


@dataclass
class CostTable:
    """Costs by part (`part_of`) and whole patterns by architecture id. `layers` is N of "N against 2N"."""

    key: Key
    layers: int
    anchor: Anchor | None = None
    costs: dict[str, Cost] = field(default_factory=dict)
    wholes: dict[str, Whole] = field(default_factory=dict)
    command: str = ""

    def missing(self, architecture: Architecture) -> list[str]:
        """Return the parts of an architecture that were not measured."""
        return [part for part in parts_of(architecture) if part not in self.costs]

    def take_in(self, other: CostTable, path: Path) -> None:
        """Add what the file at `path` has besides, in the seconds of its anchor. Raises ConfigError on another's."""
        where = Where(str(path))
        own, found = dataclasses.asdict(self.key), dataclasses.asdict(other.key)
        for name in own:
            if differ(name, own, found):
                rule = f"must be {own[name]} for this table's costs to be added; got {found[name]}"
                raise (where / "key" / name).error(rule)
        if other.anchor is not None and self.anchor is not None and other.anchor != self.anchor:
            if other.anchor.architecture != self.anchor.architecture:
                rule = "must be the model beside which this table's costs were measured"
                raise (where / "anchor.architecture").error(f"{rule}; got {other.anchor.architecture.get('pattern')}")
            self._rescale(other.anchor.seconds / self.anchor.seconds)
        self.anchor = other.anchor or self.anchor
        self.costs, self.wholes = {**other.costs, **self.costs}, {**other.wholes, **self.wholes}

    def _rescale(self, factor: float) -> None:
        """Change the unit: all seconds are shares of the anchor's."""
        self.costs = {name: _scaled(cost, factor) for name, cost in self.costs.items()}
        self.wholes = {name: _scaled(whole, factor) for name, whole in self.wholes.items()}

    def save(self, path: Path) -> None:
        """Write the file, with what the residuals say in it for its readers."""
        from archsearch.throughput.predict import residual_figures

        plain = {"format": FORMAT, **dataclasses.asdict(self), "residuals": residual_figures(self)}
        write_atomic(path, json.dumps(plain, indent=1) + "\n")


def _scaled(found: Timed, factor: float) -> Timed:
    return dataclasses.replace(found, seconds=factor * found.seconds, error=factor * found.error)


def load_table(path: str | Path) -> CostTable:
    """Read a table's file. Raises ConfigError."""
    where = Where(str(path))
    plain = read_json(path, "is no cost table")
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise where.error(f"must be a cost table of format {FORMAT}")
    read = fill(_Written, {name: plain.get(name) for name in _Written.__dataclass_fields__}, where)
    _check_key(read.key, where / "key")
    check_within(read.layers, 1, math.inf, where / "layers")
    costs = {name: _read_cost(values, where / "costs" / name) for name, values in read.costs.items()}
    return CostTable(
        key=read.key,
        layers=read.layers,
        anchor=None if read.anchor is None else _read_anchor(read.anchor, where / "anchor"),
        costs=costs,
        wholes={name: _read_whole(values, costs, where / "wholes" / name) for name, values in read.wholes.items()},
        command=read.command,
    )


def check_within(value: float | None, low: float, high: float, where: Where) -> None:
    """Raise ConfigError where a number that is there lies beyond its bounds, or is none."""
    if value is not None and not (low <= value <= high and math.isfinite(value)):
        bound = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise where.error(f"must be a number {bound}; got {value}")


def _check_key(key: Key, where: Where) -> None:
    for name, known in (("mode", MODES), ("blocks", BLOCKS), ("precision", PRECISIONS)):
        if (value := getattr(key, name)) not in known:
            raise (where / name).error(f"must be one of {', '.join(known)}; got {value!r}")
    check_within(key.batch_size, 1, math.inf, where / "batch_size")
    check_within(key.length, 1, math.inf, where / "length")


def _read_anchor(values: object, where: Where) -> Anchor:
    read = fill(_WrittenAnchor, values, where)
    check_within(read.seconds, LEAST_SECONDS, MOST_SECONDS, where / "seconds")
    return Anchor(**vars(read))


def _read_cost(values: object, where: Where) -> Cost:
    cost = fill(Cost, values, where)
    for name in ("seconds", "error"):
        check_within(getattr(cost, name), 0, MOST_SECONDS, where / name)
    check_within(cost.bytes, -MOST_BYTES, MOST_BYTES, where / "bytes")  # a marginal may be negative
    return cost


def _read_whole(values: object, costs: Mapping[str, Cost], where: Where) -> Whole:
    whole = Whole(**vars(fill(_WrittenWhole, values, where)))
    check_within(whole.seconds, LEAST_SECONDS, MOST_SECONDS, where / "seconds")
    check_within(whole.error, 0, whole.seconds, where / "error")
    check_within(whole.bytes, 0, MOST_BYTES, where / "bytes")
    for name, count in whole.parts.items():
        check_within(count, 1, MOST_BLOCKS, where / "parts" / name)
    if all(name in costs for name in whole.parts):
        total = sum(count * costs[name].seconds for name, count in whole.parts.items())
        if total < LEAST_SECONDS:
            raise (where / "parts").error(f"must take {LEAST_SECONDS:g} s or more together; got {total:g}")
    return whole


def read_json(path: str | Path, rule: str) -> Any:
    """Return what a JSON file holds. Raises ConfigError, with the rule that one breaks that is none."""
    where = Where(str(path))
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise where.error("no such file") from None
    except RecursionError:
        raise where.error(f"{rule}: nested too deeply") from None
    except (OSError, ValueError) as error:
        raise where.error(f"{rule}: {error}") from None


def check_usable(table: CostTable, wanted: Key, path: str | Path, *, named: bool) -> str | None:
    """Raise ConfigError where a table does not hold for what is wanted.

    A table of another machine that a person has `named` is used all the same; returns the warning that belongs beside
    every figure then, None where the table is this machine's own.
    """
    where = Where(str(path))
    differences = "; ".join(table.key.differences(wanted))
    if not table.key.same_conditions(wanted):
        raise where.error(f"is a table of other conditions ({differences})")
    if not differences:
        return None
    if not named:
        raise where.error(f"is a table of another machine ({differences}); name it with --table to use it all the same")
    return f"predicted for another machine, {table.key.describe()}; here: {differences}"


def with_vocabulary(architecture: Architecture, base: Architecture | None = None) -> Architecture:
    """Return the architecture with a vocabulary: its own, else that of `base`, else 256."""
    vocabulary = architecture.vocab_size or (base.vocab_size if base else None) or DEFAULT_VOCABULARY
    return dataclasses.replace(architecture, vocab_size=vocabulary)


def parts_of(architecture: Architecture) -> dict[str, int]:
    """Return the parts of an architecture by how often they occur: what is fixed once, and each block's option."""
    counts = Counter(architecture.pattern)
    parts = {fixed_part(architecture): 1}
    for letter, count in counts.items():
        part = part_of(architecture, letter)
        parts[part] = parts.get(part, 0) + count
    return parts


def fixed_part(architecture: Architecture) -> str:
    """Return the name of what an architecture has besides its blocks."""
    tied = ", tied" if architecture.tie_embeddings else ""
    return f"embedding and head: {architecture.hidden_size} x {architecture.vocab_size}{tied}"


_names: dict[Any, str] = {}


def part_of(architecture: Architecture, letter: str) -> str:
    """Return the name of a letter's block: its mixer and MLP with all their options."""
    mixer, mlp = architecture.mixers[letter], architecture.mlps.get(letter, architecture.mlp)
    known = (architecture.hidden_size, mixer, mlp)
    if known not in _names:
        options = {"hidden_size": known[0], **dataclasses.asdict(mixer.options), "mlp": mlp.to_dict()}
        _names[known] = f"{mixer.type} {json.dumps(options, sort_keys=True)}"
    return _names[known]


@dataclass(frozen=True, kw_only=True)
class _Written:
    key: Key
    layers: int
    anchor: Any = None
    costs: dict[str, Any] = field(default_factory=dict)
    wholes: dict[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class _WrittenWhole:
    label: str
    parts: dict[str, int]
    seconds: float
    error: float
    bytes: float | None = None
    rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class _WrittenAnchor:
    architecture: dict[str, Any]
    seconds: float
