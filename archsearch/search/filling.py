"""Which letter gets which slots of the base pattern.

Letters fill slots in the order in which `space.with` names them: the slots of the next are those that are left,
numbered anew, so that places of different letters never overlap. An attention layer that an earlier letter inserts is
one for a later letter's `before_attention`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from archsearch.pattern import parse
from archsearch.registry import MixerOptions
from archsearch.search.choices import Scalar
from archsearch.search.placement import PlacementError, Slots, find_slots, nth_subset, place
from archsearch.search.replacement import Replacement
from archsearch.search.space import Space


class Suggest(Protocol):
    """What decides: a sampler's trial, a random generator, or an enumeration."""

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int: ...

    def choice(self, name: str, values: Sequence[Scalar]) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Filling:
    """What becomes of one letter: the slots of the base pattern that it fills, and its options where it occurs."""

    letter: str
    count: int
    placement: str
    slots: tuple[int, ...] = ()
    options: MixerOptions | None = None


def fill_slots(
    space: Space, pattern: str, backbone: str, counts: Sequence[int], suggest: Suggest
) -> tuple[list[Filling], str | None]:
    """Return where each letter goes, up to one that has no room, and then why."""
    total = space.patterns[pattern].total
    if sum(counts) > total:
        fillings = [
            Filling(letter=x.letter, count=n, placement="none") for x, n in zip(space.replacements, counts, strict=True)
        ]
        wanted = " and ".join(f"{x.count} {x.letter}" for x in fillings if x.count)
        return fillings, f"{wanted} need {sum(counts)} slots; {pattern} has {total}"
    fillings = []
    for x, count in zip(space.replacements, counts, strict=True):
        slots, numbers = slots_left(space, pattern, backbone, fillings)
        rule = "none" if count == 0 else "all"
        if 0 < count < slots.total:
            rule = suggest.choice(f"{x.prefix}placement", x.placements)
        try:
            taken = _taken(rule, count, slots, x.prefix, suggest)
        except PlacementError as error:
            fillings.append(Filling(letter=x.letter, count=count, placement=rule))
            on = f" on {pattern}" if len(space.patterns) > 1 else ""
            return fillings, f"{about(x)}{error}{on}"
        own = tuple(numbers[i] for i in taken)
        fillings.append(Filling(letter=x.letter, count=count, placement=rule, slots=own))
    return fillings, None


def slots_left(space: Space, pattern: str, backbone: str, fillings: Sequence[Filling]) -> tuple[Slots, Sequence[int]]:
    """Return the slots that fillings leave, and which of the base pattern's they are."""
    slots = space.patterns[pattern]
    if not any(x.slots for x in fillings):
        return slots, range(slots.total)
    left = find_slots(
        dataclasses.replace(space.base, pattern=filled_pattern(space, pattern, backbone, fillings)), backbone
    )
    return left, [slots.layers.index(layer) for layer in left.layers]


def filled_pattern(space: Space, pattern: str, backbone: str, fillings: Sequence[Filling]) -> str:
    """Return the expanded pattern with the slots filled and the backbone's letter in the others."""
    layers = list(_expanded(pattern).replace(space.replace, backbone))
    for x in fillings:
        for slot in x.slots:
            layers[space.patterns[pattern].layers[slot]] = x.letter
    return "".join(layers)


def placements_of(replacement: Replacement, taken: tuple[int, ...], slots: Slots) -> list[str]:
    found = []
    for rule in replacement.placements:
        try:
            if rule != "free" and place(rule, len(taken), slots) == taken:
                found.append(rule)
        except PlacementError:
            continue
    return found


def about(replacement: Replacement) -> str:
    """Return the letter that a reason is about, where there are several."""
    return f"{replacement.letter}: " if replacement.prefix else ""


def _taken(rule: str, count: int, slots: Slots, prefix: str, suggest: Suggest) -> tuple[int, ...]:
    """Return which of the slots that are left a rule fills."""
    if rule in ("all", "none"):
        return tuple(range(count))
    if rule == "free":
        picks = [suggest.integer(f"{prefix}slot_{i}", 0, slots.total - 1 - i) for i in range(count)]
        return nth_subset(picks, slots.total)
    return place(rule, count, slots)


_expanded = lru_cache(maxsize=256)(parse)
