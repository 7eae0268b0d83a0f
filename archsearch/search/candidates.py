"""From decisions to a candidate: how many slots are filled, which ones, and with what shape."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from archsearch.architecture import Architecture, BoundMixer
from archsearch.registry import MixerOptions
from archsearch.search.choices import Choices, Match, Range, Scalar, solve
from archsearch.search.placement import PlacementError, nth_subset, place
from archsearch.search.space import Space

Decided = TypeVar("Decided")


class Suggest(Protocol):
    """What decides: a sampler's trial, a random generator, or an enumeration."""

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int: ...

    def choice(self, name: str, values: Sequence[Scalar]) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of the space; `key` is equal for equal models. Without an architecture it is `illegal` for sure."""

    key: str
    count: int
    placement: str
    slots: tuple[int, ...]
    options: MixerOptions | None
    architecture: Architecture | None
    illegal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """A candidate that every study starts with, its shape as written."""

    name: str
    rule: str
    count: int


def sample(space: Space, suggest: Suggest) -> Candidate:
    """Decide a candidate: count, then placement (0 < count < slots), then shape (count > 0)."""
    count, total = suggest.integer("count", space.count.low, space.count.high), space.slots.total
    rule = "all" if count == total else "none"
    if 0 < count < total:
        rule = suggest.choice("placement", space.placements)
    try:
        slots = _slots(space, rule, count, suggest)
    except PlacementError as error:
        key = f"illegal {rule} {count}"
        return Candidate(
            key=key, count=count, placement=rule, slots=(), options=None, architecture=None, illegal=str(error)
        )
    if not slots:
        return build(space, rule, slots, None)
    options, illegal = _shape(space, suggest)
    return build(space, rule, slots, options, illegal)


def build(
    space: Space, rule: str, slots: tuple[int, ...], options: MixerOptions | None, illegal: str | None = None
) -> Candidate:
    """Return the candidate with these slots filled, checked against the mixer's rules."""
    pattern, mixers = list(space.base.pattern), dict(space.base.mixers)
    for slot in slots:
        pattern[space.slots.layers[slot]] = space.insert
    if options is not None:
        mixers[space.insert] = BoundMixer(type=mixers[space.insert].type, options=options)
    architecture = dataclasses.replace(space.base, pattern="".join(pattern), mixers=mixers)
    if options is not None and illegal is None:
        try:
            options.check(space.base.hidden_size)
        except ValueError as error:
            illegal = str(error)
    return Candidate(
        key=architecture.id,
        count=len(slots),
        placement=rule,
        slots=slots,
        options=options,
        architecture=architecture,
        illegal=illegal,
    )


def given(space: Space) -> list[Given]:
    """Return what every study starts with: base, `first` with one, `before_attention` with as many as are allowed."""
    found = [Given(name="base", rule="none", count=0)]
    if space.count.high >= 1:
        found.append(Given(name="first", rule="first", count=1))
    if before := min(len(space.slots.before_attention), space.count.high):
        found.append(Given(name="before_attention", rule="before_attention", count=before))
    return found


def build_given(space: Space, found: Given) -> Candidate:
    """Return a candidate of `given`; its written shape is exempt from any tolerance."""
    slots = place(found.rule, found.count, space.slots) if found.count else ()
    return build(space, found.rule, slots, space.published if slots else None)


def given_decisions(space: Space, found: Given) -> dict[str, Scalar]:
    """Return those decisions of a given candidate that lie inside the space, for a sampler to learn from."""
    decisions: dict[str, Scalar] = {}
    if space.count.low <= found.count:
        decisions["count"] = found.count
    if 0 < found.count < space.slots.total and found.rule in space.placements:
        decisions["placement"] = found.rule
    if found.count:
        for name, choice in space.choices.items():
            value = getattr(space.published, name)
            if isinstance(choice, Choices) and len(choice.values) > 1 and value in choice.values:
                decisions[f"{space.insert}.{name}"] = value
            if isinstance(choice, Range) and value in range(choice.low, choice.high + 1, choice.step):
                decisions[f"{space.insert}.{name}"] = value
    return decisions


def replay_decisions(space: Space, decisions: dict[str, Scalar], suggest: Suggest) -> None:
    """Put decisions on a sampler's record by asking for each of them."""
    prefix = f"{space.insert}."
    for name in decisions:
        choice = space.choices.get(name.removeprefix(prefix))
        if name == "count":
            suggest.integer("count", space.count.low, space.count.high)
        elif name == "placement":
            suggest.choice("placement", space.placements)
        elif isinstance(choice, Range):
            suggest.integer(name, choice.low, choice.high, choice.step)
        elif isinstance(choice, Choices):
            suggest.choice(name, choice.values)


def enumerate_candidates(space: Space, limit: int) -> list[Candidate] | None:
    """Return every candidate of the space, equal models once, or None where more than `limit` ways lead to them."""
    if _ways(space) > limit:
        return None
    found: dict[str, Candidate] = {}
    for candidate in _walk(space):
        found.setdefault(candidate.key, candidate)
    return list(found.values())


def shapes(space: Space) -> list[MixerOptions]:
    """Return every legal shape of the inserted mixer, the one as written first."""
    found = {repr(space.published): space.published}
    for options, illegal in _every(lambda suggest: _shape(space, suggest)):
        try:
            options.check(space.base.hidden_size)
        except ValueError:
            continue
        if illegal is None:
            found.setdefault(repr(options), options)
    return list(found.values())


class RandomSuggest:
    """Decide uniformly."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:  # noqa: ARG002
        return self._random.randrange(low, high + 1, step)

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:  # noqa: ARG002
        return self._random.choice(list(values))


class _Replay:
    """Follow a path of decisions, then take the first way at every new fork; remember how many ways there were."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.ways: list[int] = []

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:  # noqa: ARG002
        return low + step * self._decide((high - low) // step + 1)

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:  # noqa: ARG002
        return values[self._decide(len(values))]

    def _decide(self, ways: int) -> int:
        self.ways.append(ways)
        if len(self.path) < len(self.ways):
            self.path.append(0)
        return self.path[len(self.ways) - 1]


def _ways(space: Space) -> int:
    """Return how many sequences of decisions there are."""
    shapes = 1
    for choice in space.choices.values():
        if isinstance(choice, Choices):
            shapes *= len(choice.values)
        elif isinstance(choice, Range):
            shapes *= (choice.high - choice.low) // choice.step + 1
    return sum(
        shapes * _placings(space, count) if count else 1 for count in range(space.count.low, space.count.high + 1)
    )


def _placings(space: Space, count: int) -> int:
    if count == space.slots.total:
        return 1
    rules = len(space.placements)
    return rules - 1 + math.perm(space.slots.total, count) if "free" in space.placements else rules


def _walk(space: Space) -> Iterator[Candidate]:
    return _every(lambda suggest: sample(space, suggest))


def _every(decide: Callable[[Suggest], Decided]) -> Iterator[Decided]:
    """Yield what `decide` makes of every sequence of decisions."""
    path: list[int] = []
    while True:
        replay = _Replay(path)
        yield decide(replay)
        while path and path[-1] + 1 == replay.ways[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


def _slots(space: Space, rule: str, count: int, suggest: Suggest) -> tuple[int, ...]:
    total = space.slots.total
    if rule in ("all", "none"):
        return tuple(range(count))
    if rule == "free":
        return nth_subset([suggest.integer(f"slot_{i}", 0, total - 1 - i) for i in range(count)], total)
    return place(rule, count, space.slots)


def _shape(space: Space, suggest: Suggest) -> tuple[MixerOptions, str | None]:
    """Return the options of the inserted mixer: written, overlaid by what is decided, the match solved last."""
    decided: dict[str, Any] = {}
    match: tuple[str, Match] | None = None
    for name, choice in space.choices.items():
        if isinstance(choice, Match):
            match = name, choice
        elif isinstance(choice, Range):
            decided[name] = suggest.integer(f"{space.insert}.{name}", choice.low, choice.high, choice.step)
        elif len(choice.values) == 1:
            decided[name] = choice.values[0]
        else:
            decided[name] = suggest.choice(f"{space.insert}.{name}", choice.values)
    options = dataclasses.replace(space.published, **decided)
    if match is None:
        return options, None
    options, illegal = _matched(space, options, *match)
    shape = ", ".join(f"{name} {value}" for name, value in decided.items())
    return options, f"{match[0]} for {shape or 'this shape'}: {illegal}" if illegal else None


def _matched(space: Space, options: MixerOptions, name: str, match: Match) -> tuple[MixerOptions, str | None]:
    hidden_size = space.base.hidden_size
    target = space.base.mixers[space.replace].options.num_parameters(hidden_size)
    value, illegal = _solved(options, name, match, hidden_size, target)
    return dataclasses.replace(options, **{name: value}), illegal


@functools.lru_cache(maxsize=4096)  # a sampler looks at hundreds of candidates of few shapes for each that it proposes
def _solved(options: MixerOptions, name: str, match: Match, hidden_size: int, target: int) -> tuple[int, str | None]:
    def parameters(value: int) -> int:
        return dataclasses.replace(options, **{name: value}).num_parameters(hidden_size)

    return solve(match, parameters, target)
