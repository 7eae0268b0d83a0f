"""How large a space is: every candidate of a small one, every shape of a letter, and counts of a large one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from archsearch.registry import MixerOptions
from archsearch.search.candidates import Candidate, decide_shape, refusal, sample
from archsearch.search.choices import Choices, Scalar
from archsearch.search.filling import Suggest
from archsearch.search.replacement import Replacement
from archsearch.search.space import Space

ENUMERABLE = 4000
"""A space with more ways to decide takes too long to be walked through."""

SHAPES = 10_000
"""Of a letter with more shapes than this, they are not looked at one by one."""

Decided = TypeVar("Decided")
Placings = Callable[[Replacement, int, int], int]
"""Ways to place so many of a letter in so many slots that are left."""


def enumerate_candidates(space: Space, limit: int) -> list[Candidate] | None:
    """Return every candidate of the space, equal models once, or None where more than `limit` ways lead to them."""
    if count_ways(space) > limit:
        return None
    found: dict[str, Candidate] = {}
    for _, candidate in decided_candidates(space):
        found.setdefault(candidate.key, candidate)
    return list(found.values())


def decided_candidates(space: Space) -> Iterator[tuple[dict[str, Scalar], Candidate]]:
    """Yield every sequence of decisions with the candidate that it leads to; one candidate may come more than once."""
    return _every(lambda suggest: sample(space, suggest))


def shapes(space: Space, replacement: Replacement, backbone: str) -> list[MixerOptions]:
    """Return every legal shape of a letter beside a backbone, the one as written first."""
    published = replacement.published
    return list({repr(x): x for x in [published, *_legal_shapes(space, replacement, backbone)]}.values())


def count_ways(space: Space) -> int:
    """Return how many sequences of decisions there are at most: one that finds no room ends early."""

    def placings(x: Replacement, count: int, left: int) -> int:
        if count in (0, left):
            return 1
        rules = len(x.placements)
        return rules - 1 + math.perm(left, count) if "free" in x.placements else rules

    combinations = math.prod(x.count.high - x.count.low + 1 for x in space.replacements)
    overfull = sum(
        combinations - _fitting(space.replacements, slots.total, lambda *_: 1, lambda _: 1, full=True)
        for slots in space.patterns.values()
    )
    return overfull + _count(space, placings, lambda x, _: _number_of_shapes(x))


def count_models(space: Space) -> int:
    """Return how many legal models there are at most.

    There are exactly so many where every letter's places are free, nothing is forbidden, and no two letters stand for
    the same mixer.
    """

    def placings(x: Replacement, count: int, left: int) -> int:
        subsets = math.comb(left, count)
        return subsets if "free" in x.placements else min(subsets, len(x.placements))

    legal: dict[tuple[str, str], int] = {}
    for x, backbone in itertools.product(space.replacements, space.backbones):
        number = _number_of_shapes(x)
        if number <= SHAPES:
            number = len({repr(options) for options in _legal_shapes(space, x, backbone)})
        legal[x.letter, backbone] = number
    return _count(space, placings, lambda x, backbone: legal[x.letter, backbone])


def _count(space: Space, placings: Placings, number: Callable[[Replacement, str], int]) -> int:
    """Return the sum over base patterns, backbones and counts of placings times shapes.

    With every slot filled there is no backbone, and it is counted once.
    """
    return sum(
        _fitting(space.replacements, slots.total, placings, partial(_beside, number, backbone), full=not i)
        for slots in space.patterns.values()
        for i, backbone in enumerate(space.backbones)
    )


def _beside(number: Callable[[Replacement, str], int], backbone: str, replacement: Replacement) -> int:
    return number(replacement, backbone)


def _fitting(
    replacements: Sequence[Replacement],
    left: int,
    placings: Placings,
    number: Callable[[Replacement], int],
    *,
    full: bool,
) -> int:
    """Return the ways of the remaining letters in the slots that are left; all filled counts where `full`."""
    if not replacements:
        return int(left > 0 or full)
    x, total = replacements[0], 0
    for count in range(x.count.low, min(x.count.high, left) + 1):
        ways = placings(x, count, left) * (number(x) if count else 1)
        total += ways and ways * _fitting(replacements[1:], left - count, placings, number, full=full)
    return total


def _number_of_shapes(replacement: Replacement) -> int:
    """Return how many ways of deciding a shape there are, legal or not."""
    return math.prod(
        len(x.values) if isinstance(x, Choices) else (x.high - x.low) // x.step + 1
        for x in replacement.searched.values()
    )


def _legal_shapes(space: Space, replacement: Replacement, backbone: str) -> Iterator[MixerOptions]:
    for _, (options, illegal) in _every(lambda suggest: decide_shape(space, replacement, backbone, suggest)):
        if illegal is None and refusal(space, options) is None:
            yield options


def _every(decide: Callable[[Suggest], Decided]) -> Iterator[tuple[dict[str, Scalar], Decided]]:
    """Yield every sequence of decisions and what `decide` makes of it."""
    path: list[int] = []
    while True:
        replay = _Replay(path)
        decided = decide(replay)
        yield replay.taken, decided
        while path and path[-1] + 1 == replay.ways[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


class _Replay:
    """Follow a path of decisions, then take the first way at every new fork; remember how many ways there were."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.ways: list[int] = []
        self.taken: dict[str, Scalar] = {}

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:
        value = low + step * self._decide((high - low) // step + 1)
        self.taken[name] = value
        return value

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:
        self.taken[name] = values[self._decide(len(values))]
        return self.taken[name]

    def _decide(self, ways: int) -> int:
        self.ways.append(ways)
        if len(self.path) < len(self.ways):
            self.path.append(0)
        return self.path[len(self.ways) - 1]
