"""What a candidate begins with: one of several base patterns, and one of several backbones at the replaced places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.pattern import compact
from archsearch.search.placement import Slots, find_slots


def parse_letters(value: object, base: Architecture, where: Where) -> tuple[str, ...]:
    """Read one letter or a list of different ones, bound by the architecture or by default. Raises ConfigError."""
    if not isinstance(value, list):
        return (parse_letter(value, base, where),)
    if not value:
        raise where.error("must be a letter or a list of letters; got []")
    for i, letter in enumerate(value):
        parse_letter(letter, base, _item(where, i))
        if letter in value[:i]:
            raise _item(where, i).error(f"must name each letter once; got {letter!r} twice")
    return tuple(value)


def parse_letter(value: object, base: Architecture, where: Where) -> str:
    """Read a letter that the architecture binds, or that has a default. Raises ConfigError."""
    letters = sorted({*base.mixers, *registry.default_letters()})
    if not isinstance(value, str) or value not in letters:
        raise where.error(f"must be one letter of this architecture ({', '.join(letters)}); got {value!r}")
    return value


def parse_patterns(
    values: object, base: Architecture, num_layers: int | None, replace: str, where: Where
) -> dict[str, Slots]:
    """Read the base patterns as their slots by compact spelling, the architecture's own first. Raises ConfigError.

    None means its own alone; each is repeated to `num_layers` as that is.
    """
    own = compact(base.pattern)
    found = {own: find_slots(base, replace)}
    if values is None:
        return found
    if not isinstance(values, list) or not values:
        raise where.error(f"must be a list of patterns; got {values!r}")
    names: list[str] = []
    for i, text in enumerate(values):
        place = _item(where, i)
        if not isinstance(text, str):
            raise place.error(f"must be a pattern; got {text!r}")
        architecture = base.with_pattern(text, num_layers, place)
        name = compact(architecture.pattern)
        if name in names:
            raise place.error(f"must name each pattern once; got {name} twice")
        if replace not in architecture.pattern:
            raise place.error(f"must hold the letter of space.replace ({replace}); got {text!r}")
        _check_options(architecture, sorted(set(architecture.pattern)), place)
        names.append(name)
        found[name] = find_slots(architecture, replace)
    if own not in names:
        raise where.error(f"must hold the architecture's own pattern, the base of the study ({own}); got {values!r}")
    return found


def parse_backbones(
    value: object, base: Architecture, replace: str, patterns: Mapping[str, Slots], where: Where
) -> tuple[str, ...]:
    """Read the letters that the replaced places may have where nothing is inserted. Raises ConfigError."""
    if value is None:
        return (replace,)
    letters = parse_letters(value, base, where)
    if letters[0] != replace:
        raise where.error(f"must begin with the letter of space.replace ({replace}); got {value!r}")
    for i, letter in enumerate(letters[1:], 1):
        if taken := [name for name in patterns if letter in name]:
            raise _item(where, i).error(f"must not occur in the base pattern {taken[0]}; got {letter!r}")
        _check_options(base.with_pattern(letter), letter, _item(where, i))
    return letters


def check_inserted(
    letters: Sequence[str], replace: str, patterns: Mapping[str, Slots], backbones: Sequence[str], where: Where
) -> None:
    """Raise ConfigError where a letter that takes slots stands for something else too."""
    for letter in letters:
        if letter == replace:
            raise where.error(f"must be another letter than space.replace; got {letter!r} for both")
        if taken := [name for name in patterns if letter in name]:
            raise where.error(f"must not occur in the base pattern {taken[0]}; got {letter!r}")
        if letter in backbones:
            raise where.error(f"must be another letter than those of space.backbone; got {letter!r} for both")


def _check_options(architecture: Architecture, letters: Sequence[str], where: Where) -> None:
    """See that mixers work at this size: a letter's default options need not."""
    for letter in letters:
        mixer = architecture.mixers[letter]
        try:
            mixer.options.check(architecture.hidden_size)
        except ValueError as error:
            raise where.error(f"{letter}, {mixer.type}: {error}") from None


def _item(where: Where, number: int) -> Where:
    return Where(where.source, f"{where.key}[{number}]")
