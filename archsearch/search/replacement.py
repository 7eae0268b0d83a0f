"""The letters that take slots: how many each, where, and with which head shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archsearch.architecture import Architecture
from archsearch.config import Where, fill
from archsearch.registry import MixerOptions
from archsearch.search.choices import Choice, Choices, Range, parse_choices
from archsearch.search.keys import check_keys, check_name
from archsearch.search.placement import PLACEMENTS, Slots, is_attention

DEFAULT_PLACEMENTS = ["first", "spread", "last"]
RESERVED = ("count", "placement")


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many slots are filled, both ends included."""

    low: int = 0
    high: int


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What is decided on one letter; `published` are its options as written.

    `prefix` precedes the names of its count, placement and slots: nothing where no other letter takes slots.
    """

    letter: str
    prefix: str
    count: Count
    placements: tuple[str, ...]
    choices: Mapping[str, Choice]
    published: MixerOptions

    @property
    def searched(self) -> dict[str, Choices | Range]:
        """The options that are decided, by name: neither fixed nor matched."""
        open_ = {name: x for name, x in self.choices.items() if isinstance(x, Choices | Range)}
        return {name: x for name, x in open_.items() if isinstance(x, Range) or len(x.values) > 1}


def parse_replacements(
    written: Mapping[str, Any],
    letters: Sequence[str],
    base: Architecture,
    patterns: Mapping[str, Slots],
    replace: str,
    where: Where,
) -> tuple[Replacement, ...]:
    """Read `count`, `placement` and `mixers` of all letters, shared or by letter. Raises ConfigError.

    `patterns` are the slots of every base pattern.
    """
    counts = _by_letter(written["count"], letters, where / "count")
    placements = _by_letter(written.get("placement", DEFAULT_PLACEMENTS), letters, where / "placement")
    mixers = written.get("mixers", {})
    _check_mixers(mixers, letters, where / "mixers")
    found = tuple(
        Replacement(
            letter=letter,
            prefix=f"{letter}." if len(letters) > 1 else "",
            count=_count(*counts[letter], replace, patterns),
            placements=_placements(*placements[letter], patterns, _holds_attention(base, letters[:i])),
            choices=parse_choices(mixers.get(letter, {}), type(base.mixers[letter].options), where / "mixers" / letter),
            published=base.mixers[letter].options,
        )
        for i, letter in enumerate(letters)
    )
    _check_together(found, patterns, where)
    return found


def _by_letter(values: object, letters: Sequence[str], where: Where) -> dict[str, tuple[Any, Where]]:
    """Return each letter's value and its place; what names no letter is meant for all of them."""
    if not isinstance(values, Mapping) or len(letters) == 1 or not set(values) & set(letters):
        return dict.fromkeys(letters, (values, where))
    check_keys(values, letters, where, required=letters)
    return {letter: (values[letter], where / letter) for letter in letters}


def _count(values: object, where: Where, replace: str, patterns: Mapping[str, Slots]) -> Count:
    count = fill(Count, values, where)
    if count.low < 0:
        raise (where / "low").error(f"must be at least 0; got {count.low}")
    if count.low > count.high:
        raise where.error(f"low <= high must hold; got low={count.low}, high={count.high}")
    pattern, most = _roomiest(patterns)
    if count.high > most:
        places = f"the {most} places of {replace} in {pattern}"
        raise (where / "high").error(f"must be at most the number of slots ({places}); got {count.high}")
    return count


def _holds_attention(base: Architecture, letters: Sequence[str]) -> bool:
    return any(is_attention(base.mixers[letter].options, base.hidden_size) for letter in letters)


def _placements(
    values: object, where: Where, patterns: Mapping[str, Slots], after_inserted_attention: bool
) -> tuple[str, ...]:
    if not isinstance(values, list) or not values:
        raise where.error(f"must be a list of {', '.join(PLACEMENTS)}; got {values!r}")
    for i, name in enumerate(values):
        place = Where(where.source, f"{where.key}[{i}]")
        check_name(name, PLACEMENTS, "placement", place)
        if name in values[:i]:
            raise place.error(f"must name each placement once; got {name!r} twice")
        beside = not name.endswith("_attention") or any(getattr(slots, name) for slots in patterns.values())
        if not (beside or after_inserted_attention):
            raise place.error(f"no slot stands next to attention on that side; got {name!r}")
    return tuple(values)


def _check_mixers(values: object, letters: Sequence[str], where: Where) -> None:
    names = ", ".join(letters)
    if not isinstance(values, Mapping):
        word = "the letter" if len(letters) == 1 else "letters of"
        raise where.error(f"must be a mapping from {word} {names} to its options; got {values!r}")
    for letter in values:
        if letter not in letters:
            raise (where / str(letter)).error(f"only the shape of space.with ({names}) is searched; got {letter!r}")


def _check_together(replacements: Sequence[Replacement], patterns: Mapping[str, Slots], where: Where) -> None:
    """Check what letters must not be together: more than there are slots, or named like another decision."""
    pattern, most = _roomiest(patterns)
    least = sum(x.count.low for x in replacements)
    if least > most:
        raise (where / "count").error(
            f"the letters' low together must be at most the number of slots ({most} in {pattern}); got {least}"
        )
    for replacement in replacements if len(replacements) > 1 else ():
        for name in replacement.searched:
            if name in RESERVED or name.startswith("slot_"):
                place = where / "mixers" / replacement.letter / name
                raise place.error(f"with several letters {replacement.letter}.{name} is a decision of the space itself")


def _roomiest(patterns: Mapping[str, Slots]) -> tuple[str, int]:
    return max(((name, slots.total) for name, slots in patterns.items()), key=lambda found: found[1])
