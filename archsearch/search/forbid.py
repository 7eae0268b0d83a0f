"""Combinations that a space forbids: what a candidate is must not match all of an entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archsearch.config import Where
from archsearch.pattern import PatternError, compact, parse
from archsearch.search.choices import Choices, Match, Range, Scalar
from archsearch.search.keys import check_keys
from archsearch.search.replacement import Replacement

Facts = Mapping[str, Collection[Scalar]]
"""What a candidate is, by the names of decisions; places that several placements lead to have several values."""


@dataclass(frozen=True, kw_only=True)
class Forbidden:
    """One entry: for every name, the values that match."""

    number: int
    values: Mapping[str, tuple[Scalar, ...]]

    def matches(self, facts: Facts) -> bool:
        """Return whether a candidate is all of this."""
        return all(set(facts.get(name, ())) & set(values) for name, values in self.values.items())

    def __str__(self) -> str:
        parts = [f"{name} {' or '.join(map(str, values))}" for name, values in self.values.items()]
        return f"forbidden by space.forbid[{self.number}]: {', '.join(parts)}"


def decisions(
    patterns: Collection[str], backbones: Collection[str], replacements: Sequence[Replacement]
) -> dict[str, Choices | Range]:
    """Return what is decided by name, in the order in which it is asked; numbers of free slots apart."""
    found: dict[str, Choices | Range] = {}
    if len(patterns) > 1:
        found["pattern"] = Choices(values=tuple(patterns))
    for x in replacements:
        found[f"{x.prefix}count"] = Range(low=x.count.low, high=x.count.high)
    if len(backbones) > 1:
        found["backbone"] = Choices(values=tuple(backbones))
    for x in replacements:
        found[f"{x.prefix}placement"] = Choices(values=x.placements)
    for x in replacements:
        found.update({f"{x.letter}.{name}": choice for name, choice in x.searched.items()})
    return found


def parse_forbidden(
    values: object,
    patterns: Collection[str],
    num_layers: int | None,
    backbones: Collection[str],
    replacements: Sequence[Replacement],
    where: Where,
) -> tuple[Forbidden, ...]:
    """Read the entries. Raises ConfigError, also for what could never match."""
    if not isinstance(values, list):
        raise where.error(f"must be a list of mappings from decisions to a value or a list of values; got {values!r}")
    known: dict[str, Any] = dict(decisions(patterns, backbones, replacements))
    for x in replacements:
        known.update({f"{x.letter}.{name}": choice for name, choice in x.choices.items()})
    found = []
    for i, entry in enumerate(values):
        place = Where(where.source, f"{where.key}[{i}]")
        if not isinstance(entry, Mapping) or not entry:
            raise place.error(f"must be a mapping from decisions to a value or a list of values; got {entry!r}")
        check_keys(entry, list(known), place)
        read = {name: _values(name, value, known[name], num_layers, place / name) for name, value in entry.items()}
        _check_possible(read, replacements, place)
        found.append(Forbidden(number=i, values=read))
    return tuple(found)


def _values(name: str, written: Any, choice: Any, num_layers: int | None, where: Where) -> tuple[Scalar, ...]:
    listed = written if isinstance(written, list) else [written]
    if not listed:
        raise where.error("must list at least one value; got []")
    values = [_spelt(value, num_layers) if name == "pattern" else value for value in listed]
    for value, got in zip(values, listed, strict=True):
        if not _fits(value, choice):
            raise where.error(f"must be {_words(choice)}; got {got!r}")
    return tuple(values)


def _spelt(value: Any, num_layers: int | None) -> Any:
    """Return a pattern as the space spells it."""
    try:
        expanded = parse(value)
    except (PatternError, TypeError):
        return value
    repeats = (num_layers or 0) % len(expanded) == 0
    return compact(expanded * max(1, (num_layers or 0) // len(expanded)) if repeats else expanded)


def _fits(value: Any, choice: Choices | Range | Match) -> bool:
    if isinstance(choice, Choices):
        return value in choice.values and isinstance(value, bool) == isinstance(
            choice.values[choice.values.index(value)], bool
        )
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= 1 if isinstance(choice, Match) else value in range(choice.low, choice.high + 1, choice.step)


def _words(choice: Choices | Range | Match) -> str:
    if isinstance(choice, Choices):
        return f"among {', '.join(map(str, choice.values))}"
    if isinstance(choice, Match):
        return "an integer of at least 1"
    step = f" in steps of {choice.step}" if choice.step > 1 else ""
    return f"an integer from {choice.low} to {choice.high}{step}"


def _check_possible(
    values: Mapping[str, tuple[Scalar, ...]], replacements: Sequence[Replacement], where: Where
) -> None:
    """Refuse an entry that asks for the places or the shape of a letter that does not occur."""
    for x in replacements:
        count = f"{x.prefix}count"
        own = [name for name in values if name == f"{x.prefix}placement" or name.startswith(f"{x.letter}.")]
        own = [name for name in own if name != count]
        if own and not any(values.get(count, (1,))):
            raise (where / own[0]).error(f"can never match: it is decided only where {count} is above 0")
