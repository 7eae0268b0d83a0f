"""From decisions to a candidate: on which base, how many slots each letter fills, which ones, and with what shape."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from archsearch.architecture import Architecture, BoundMixer
from archsearch.registry import MixerOptions
from archsearch.search.choices import Match, Range, Scalar, solve
from archsearch.search.filling import Filling, Suggest, about, fill_slots, filled_pattern, placements_of, slots_left
from archsearch.search.placement import place
from archsearch.search.replacement import Replacement
from archsearch.search.space import Space


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of the space, a filling per letter of `space.with`; without an architecture it is `illegal` for sure.

    Legal ones have equal keys where their models are equal.
    """

    key: str
    pattern: str
    backbone: str
    fillings: tuple[Filling, ...]
    architecture: Architecture | None
    illegal: str | None = None

    @property
    def count(self) -> int:
        """How many slots are filled."""
        return sum(x.count for x in self.fillings)

    @property
    def slots(self) -> tuple[int, ...]:
        """Which slots are filled, by whatever letter."""
        return tuple(sorted(slot for x in self.fillings for slot in x.slots))

    @property
    def options(self) -> dict[str, MixerOptions]:
        """The options of the letters that occur."""
        return {x.letter: x.options for x in self.fillings if x.options is not None}


@dataclass(frozen=True, kw_only=True)
class Given:
    """A candidate that every study starts with, its shape as written."""

    name: str
    letter: str
    rule: str
    count: int


def sample(space: Space, suggest: Suggest) -> Candidate:
    """Decide a candidate; what depends on an earlier decision is asked only where it makes a difference.

    The order: base pattern, counts, backbone (where a slot is left for it), placements (0 < count < slots left),
    shapes (count > 0).
    """
    pattern = _choose(suggest, "pattern", list(space.patterns))
    slots = space.patterns[pattern]
    counts = [suggest.integer(f"{x.prefix}count", x.count.low, x.count.high) for x in space.replacements]
    backbone = space.replace
    if sum(counts) < slots.total:
        backbone = _choose(suggest, "backbone", space.backbones)
    fillings, impossible = fill_slots(space, pattern, backbone, counts, suggest)
    if impossible:
        return _nowhere(space, pattern, backbone, fillings, impossible)
    shaped, illegal = [], None
    for filling, replacement in zip(fillings, space.replacements, strict=True):
        if filling.count:
            options, reason = decide_shape(space, replacement, backbone, suggest)
            filling = dataclasses.replace(filling, options=options)
            illegal = illegal or (f"{about(replacement)}{reason}" if reason else None)
        shaped.append(filling)
    return build(space, shaped, pattern=pattern, backbone=backbone, illegal=illegal)


def build(
    space: Space,
    fillings: Sequence[Filling],
    *,
    pattern: str | None = None,
    backbone: str | None = None,
    illegal: str | None = None,
) -> Candidate:
    """Return the candidate with these slots filled, checked against the mixers' rules and what the space forbids.

    By default the base's own pattern and backbone. The base itself cannot be forbidden.
    """
    pattern, backbone = pattern or space.pattern, backbone or space.replace
    mixers = dict(space.base.mixers)
    for filling, replacement in zip(fillings, space.replacements, strict=True):
        if filling.options is not None:
            mixers[filling.letter] = BoundMixer(type=mixers[filling.letter].type, options=filling.options)
            reason = refusal(space, filling.options)
            illegal = illegal or (f"{about(replacement)}{reason}" if reason else None)
    layers = filled_pattern(space, pattern, backbone, fillings)
    architecture = dataclasses.replace(space.base, pattern=layers, mixers=mixers)
    key = architecture.id
    forbidden = None
    if illegal is None and space.forbidden and key != space.base.id:
        facts = _facts(space, pattern, backbone, fillings)
        forbidden = next((str(entry) for entry in space.forbidden if entry.matches(facts)), None)
    if forbidden or illegal:
        key = f"illegal {key}"  # another way to the same model may be legal, or the space may allow it later
    return Candidate(
        key=key,
        pattern=pattern,
        backbone=backbone,
        fillings=tuple(fillings),
        architecture=architecture,
        illegal=illegal or forbidden,
    )


def given(space: Space) -> list[Given]:
    """Return what every study starts with: base, and of each letter one `first`, and all that may precede attention."""
    found = [Given(name="base", letter=space.replacements[0].letter, rule="none", count=0)]
    for i, replacement in enumerate(space.replacements):
        letter, most = replacement.letter, replacement.count.high
        of = f" {letter}" if i else ""
        if min(most, space.slots.total) >= 1:
            found.append(Given(name=f"first{of}", letter=letter, rule="first", count=1))
        if before := min(len(space.slots.before_attention), most):
            found.append(Given(name=f"before_attention{of}", letter=letter, rule="before_attention", count=before))
    return found


def build_given(space: Space, found: Given) -> Candidate:
    """Return a candidate of `given`; its written shape is exempt from any tolerance."""
    fillings = []
    for x in space.replacements:
        if x.letter == found.letter and found.count:
            slots = place(found.rule, found.count, space.slots)
            fillings.append(
                Filling(letter=x.letter, count=found.count, placement=found.rule, slots=slots, options=x.published)
            )
        else:
            fillings.append(Filling(letter=x.letter, count=0, placement="none"))
    return build(space, fillings)


def given_decisions(space: Space, found: Given) -> dict[str, Scalar]:
    """Return those decisions of a given candidate that lie inside the space, for a sampler to learn from."""
    decided: dict[str, Scalar] = {"pattern": space.pattern}
    for x in space.replacements:
        decided[f"{x.prefix}count"] = found.count if x.letter == found.letter else 0
    if found.count < space.slots.total:
        decided["backbone"] = space.replace
    for x in space.replacements:
        if x.letter == found.letter and found.count:
            if found.count < space.slots.total:
                decided[f"{x.prefix}placement"] = found.rule
            decided.update({f"{x.letter}.{name}": getattr(x.published, name) for name in x.searched})
    inside = {}
    for name, domain in space.decisions.items():
        values = range(domain.low, domain.high + 1, domain.step) if isinstance(domain, Range) else domain.values
        if name in decided and decided[name] in values:
            inside[name] = decided[name]
    return inside


def replay_decisions(space: Space, decisions: Mapping[str, Scalar], suggest: Suggest) -> None:
    """Put decisions on a sampler's record by asking for each of them."""
    for name, domain in space.decisions.items():
        if name not in decisions:
            continue
        if isinstance(domain, Range):
            suggest.integer(name, domain.low, domain.high, domain.step)
        else:
            suggest.choice(name, domain.values)


def decide_shape(
    space: Space, replacement: Replacement, backbone: str, suggest: Suggest
) -> tuple[MixerOptions, str | None]:
    """Return a letter's options and why they are illegal, if they are.

    They are the written ones, overlaid by what is decided, the match solved last.
    """
    decided: dict[str, Any] = {}
    match: tuple[str, Match] | None = None
    for name, choice in replacement.choices.items():
        if isinstance(choice, Match):
            match = name, choice
        elif isinstance(choice, Range):
            decided[name] = suggest.integer(f"{replacement.letter}.{name}", choice.low, choice.high, choice.step)
        else:
            decided[name] = _choose(suggest, f"{replacement.letter}.{name}", choice.values)
    options = dataclasses.replace(replacement.published, **decided)
    if match is None:
        return options, None
    options, illegal = _matched(space, options, backbone, *match)
    shape = ", ".join(f"{name} {value}" for name, value in decided.items())
    return options, f"{match[0]} for {shape or 'this shape'}: {illegal}" if illegal else None


def refusal(space: Space, options: MixerOptions) -> str | None:
    """Return why a mixer cannot have these options, if it cannot."""
    try:
        options.check(space.base.hidden_size)
    except ValueError as error:
        return str(error)
    return None


class RandomSuggest:
    """Decide uniformly."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:  # noqa: ARG002
        return self._random.randrange(low, high + 1, step)

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:  # noqa: ARG002
        return self._random.choice(list(values))


def _choose(suggest: Suggest, name: str, values: Sequence[Any]) -> Any:
    """Ask where there is a choice."""
    return suggest.choice(name, values) if len(values) > 1 else values[0]


def _nowhere(space: Space, pattern: str, backbone: str, fillings: Sequence[Filling], reason: str) -> Candidate:
    """Return a candidate whose letters have no room; its key is the same for the same reason."""
    if len(space.replacements) == 1 and len(space.patterns) == 1:
        key = f"illegal {fillings[0].placement} {fillings[0].count}"
    else:
        key = f"illegal {reason}"
    return Candidate(
        key=key, pattern=pattern, backbone=backbone, fillings=tuple(fillings), architecture=None, illegal=reason
    )


def _facts(space: Space, pattern: str, backbone: str, fillings: Sequence[Filling]) -> dict[str, Sequence[Scalar]]:
    """Return what a candidate is by the names of decisions, whichever decisions have led there.

    Its placements are all those that fill these slots, `free` only where no other does.
    """
    facts: dict[str, Sequence[Scalar]] = {"pattern": [pattern]}
    if sum(x.count for x in fillings) < space.patterns[pattern].total:
        facts["backbone"] = [backbone]
    for i, (x, filling) in enumerate(zip(space.replacements, fillings, strict=True)):
        slots, numbers = slots_left(space, pattern, backbone, fillings[:i])
        facts[f"{x.prefix}count"] = [filling.count]
        if 0 < filling.count < slots.total:
            taken = tuple(numbers.index(slot) for slot in filling.slots)
            facts[f"{x.prefix}placement"] = placements_of(x, taken, slots) or ["free"]
        if filling.options is not None:
            facts.update({f"{x.letter}.{name}": [getattr(filling.options, name)] for name in x.choices})
    return facts


def _matched(
    space: Space, options: MixerOptions, backbone: str, name: str, match: Match
) -> tuple[MixerOptions, str | None]:
    hidden_size = space.base.hidden_size
    target = space.base.mixers[backbone].options.num_parameters(hidden_size)
    try:
        return _solved_once(options, hidden_size, target, name, match)
    except TypeError:  # an option that cannot be hashed, such as a list
        return _solved(options, hidden_size, target, name, match)


def _solved(
    options: MixerOptions, hidden_size: int, target: int, name: str, match: Match
) -> tuple[MixerOptions, str | None]:
    def parameters(value: int) -> int:
        return dataclasses.replace(options, **{name: value}).num_parameters(hidden_size)

    value, illegal = solve(match, parameters, target)
    return dataclasses.replace(options, **{name: value}), illegal


_solved_once = lru_cache(maxsize=4096)(_solved)  # a sampler looks at hundreds of candidates of few shapes
