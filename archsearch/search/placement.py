"""Which slots are filled: `first`, `last`, `before_attention`, `after_attention`, `spread`; `free` is sampled.

A slot is a place of the replaced letter in the base pattern, numbered from 0. "Attention" is any layer that has no
recurrent state and a cache that grows with the length, so that a mixer of another package counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.architecture import Architecture
from archsearch.registry import MixerOptions

PLACEMENTS = ("first", "last", "before_attention", "after_attention", "spread", "free")


class PlacementError(ValueError):
    """A count that a placement has no room for."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The layers that may be replaced, and which slots stand next to attention."""

    layers: tuple[int, ...]
    before_attention: tuple[int, ...]
    after_attention: tuple[int, ...]

    @property
    def total(self) -> int:
        return len(self.layers)


def find_slots(base: Architecture, replace: str) -> Slots:
    """Return the slots of an architecture's pattern."""
    layers = tuple(i for i, letter in enumerate(base.pattern) if letter == replace)
    attention = [x for x in set(base.pattern) if is_attention(base.mixers[x].options, base.hidden_size)]
    places = {i for i, letter in enumerate(base.pattern) if letter in attention}
    return Slots(
        layers=layers,
        before_attention=tuple(slot for slot, layer in enumerate(layers) if layer + 1 in places),
        after_attention=tuple(slot for slot, layer in enumerate(layers) if layer - 1 in places),
    )


def place(rule: str, count: int, slots: Slots) -> tuple[int, ...]:
    """Return the slots that a rule fills, in order. Raises PlacementError. `free` is not a rule, but any subset."""
    total = slots.total
    if rule == "first":
        return tuple(range(count))
    if rule == "last":
        return tuple(range(total - count, total))
    if rule == "spread":
        return tuple((2 * i + 1) * total // (2 * count) for i in range(count))
    assert rule in ("before_attention", "after_attention")
    beside = slots.before_attention if rule == "before_attention" else slots.after_attention
    if count > len(beside):
        words = rule.replace("_", " ")
        raise PlacementError(f"{words} has room for {len(beside)}; got a count of {count}")
    return beside[:count]


def nth_subset(picks: list[int], total: int) -> tuple[int, ...]:
    """Return the subset that numbers draw one by one from the slots that are left."""
    left = list(range(total))
    return tuple(sorted(left.pop(pick) for pick in picks))


def is_attention(options: MixerOptions, hidden_size: int) -> bool:
    """Return whether a mixer keeps no recurrent state, and more the longer a sequence is."""
    grows = options.cache_size(hidden_size, 1) > options.cache_size(hidden_size, 0)  # a window stops growing later
    return grows and options.state_size(hidden_size) == 0
