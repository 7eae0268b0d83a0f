"""The options of the inserted mixer: a fixed value, a list, an integer range, or a head count that matches a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, make_dataclass
from typing import Any, Literal, get_type_hints

from archsearch.config import Where, fill
from archsearch.registry import MixerOptions
from archsearch.search.keys import check_keys

Scalar = int | float | str | bool | None


@dataclass(frozen=True, kw_only=True)
class Choices:
    """One of the listed values; a single one is fixed."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """An integer from `low` to `high`, both included."""

    low: int
    high: int
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class Match:
    """The integer that brings the parameters nearest to the replaced mixer's, within a relative tolerance."""

    match: Literal["parameters"] = "parameters"
    of: Literal["replaced"] = "replaced"
    tolerance: float


Choice = Choices | Range | Match


def parse_choices(values: object, options: type[MixerOptions], where: Where) -> dict[str, Choice]:
    """Read the searched options of one mixer. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise where.error(f"must be a mapping from options to their choices; got {values!r}")
    hints = get_type_hints(options)
    check_keys(values, [field.name for field in fields(options)], where)
    choices = {name: _choice(name, value, hints[name], where) for name, value in values.items()}
    matched = [name for name, choice in choices.items() if isinstance(choice, Match)]
    if len(matched) > 1:
        raise where.error(f"at most one option may match a size; got {', '.join(matched)}")
    return choices


def solve(match: Match, parameters: Callable[[int], int], target: int) -> tuple[int, str | None]:
    """Return the integer >= 1 whose `parameters` are nearest to `target`, and why it is illegal, if it is.

    `parameters` must grow with its argument; of two as near, the smaller is taken.
    """
    low, high = 1, 2
    while parameters(high) < target:
        if parameters(high) <= parameters(low):  # as heads that share the hidden size among them
            size = f"{high} have no more parameters than {low} ({parameters(low):,})"
            return low, f"{size}, against {target:,} of the replaced mixer"
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(middle) < target else (low, middle)
    best = min((low, high), key=lambda n: (abs(parameters(n) - target), n))
    difference = parameters(best) / target - 1
    if abs(difference) <= match.tolerance:
        return best, None
    size = f"{parameters(best):,} parameters against {target:,} of the replaced mixer"
    return best, f"the nearest is {best} with {size} ({difference:+.1%}; tolerance {match.tolerance:.1%})"


def _choice(name: str, value: Any, hint: Any, where: Where) -> Choice:
    place = where / name
    if isinstance(value, Mapping):
        if hint not in (int, int | None):
            raise place.error(
                f"takes a value or a list; a range or a match needs an integer option; got {dict(value)!r}"
            )
        return _match(value, place) if "match" in value else _range(value, place)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise place.error("must list at least one value; got []")
    return _list(name, values, hint, where) if isinstance(value, list) else _single(name, value, hint, where)


def _list(name: str, values: list[Any], hint: Any, where: Where) -> Choices:
    if any(isinstance(value, list | Mapping) for value in values):
        raise (where / name).error(f"must list plain values; got {values!r}")
    schema = make_dataclass("Listed", [(name, list[hint])])
    checked = getattr(fill(schema, {name: values}, where), name)
    if len(set(checked)) < len(checked):
        raise (where / name).error(f"must list each value once; got {values!r}")
    return Choices(values=tuple(checked))


def _single(name: str, value: Any, hint: Any, where: Where) -> Choices:
    schema = make_dataclass("Fixed", [(name, hint)])
    return Choices(values=(getattr(fill(schema, {name: value}, where), name),))


def _range(values: Mapping[str, Any], where: Where) -> Range:
    found = fill(Range, values, where)
    if found.step < 1 or found.low > found.high or (found.high - found.low) % found.step:
        got = f"low={found.low}, high={found.high}, step={found.step}"
        raise where.error(f"low <= high, and step >= 1 dividing high - low, must hold; got {got}")
    return found


def _match(values: Mapping[str, Any], where: Where) -> Match:
    found = fill(Match, values, where)
    if not 0 <= found.tolerance < 1:
        raise (where / "tolerance").error(f"must be a fraction from 0 to below 1; got {found.tolerance}")
    return found
