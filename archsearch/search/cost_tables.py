"""Cost tables of a space: what has to be in one, where it is found, and the copy that a study adds to."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.files import locked
from archsearch.registry import MixerOptions
from archsearch.search.candidates import build, build_given, given, refusal
from archsearch.search.choices import Match
from archsearch.search.enumeration import shapes
from archsearch.search.filling import Filling
from archsearch.search.judge import Table
from archsearch.search.replacement import Replacement
from archsearch.search.space import Space
from archsearch.throughput.cost_table import CostTable, Key, check_usable, load_table, with_vocabulary

FOLDER = "cost_tables"
"""Beside a space's file: `cost_tables/SPACE.CARD.MODE....json`."""


def default_path(file: str | Path, key: Key) -> Path:
    """Return where the table of a space's file belongs."""
    card = "".join(letter if letter.isalnum() else "_" for letter in key.card)
    way = "" if key.blocks == "eager" else f".{key.blocks}"
    name = f"{Path(file).stem}.{card}.{key.mode}{way}.{key.precision}.b{key.batch_size}.t{key.length}.json"
    return Path(file).parent / FOLDER / name


def architectures(space: Space) -> list[Architecture]:
    """Return models that together hold every block that a candidate, or an anchor of the budget, can have."""
    found = [space.base, *(made for one in given(space) if (made := build_given(space, one).architecture))]
    for pattern, backbone in itertools.product(space.patterns, space.backbones):
        found.append(_filled(space, pattern, backbone, {}, {}))
    for x, backbone in itertools.product(space.replacements, space.backbones):
        for options in shapes(space, x, backbone) if x.count.high else ():
            found.append(_filled(space, space.pattern, backbone, {x.letter: (0,)}, {x.letter: options}))
    for speed in (space.budget.train_tokens_per_second, space.budget.decode_tokens_per_second):
        if speed is not None and speed.fraction:
            found.append(speed.anchor)
    return found


def random_patterns(
    space: Space,
    number: int,
    seed: int,
    *,
    most: int = 6,
    new_shapes: float = 0.0,
    known: Container[str] = (),
) -> list[Architecture]:
    """Return candidates of 0 to `most` filled slots, placed freely, with shapes drawn from the space's legal ones.

    A share of them, `new_shapes`, has a number of heads that the space never asks for. All differ, and none is in
    `known`, ids of architectures with a vocabulary.
    """
    drawn, both = random.Random(seed), itertools.product(space.replacements, space.backbones)
    legal = {(x.letter, backbone): shapes(space, x, backbone) for x, backbone in both}
    found: dict[str, Architecture] = {}
    for attempt in range(100 * number):
        if len(found) == number:
            break
        pattern, backbone = _one_of(drawn, list(space.patterns)), _one_of(drawn, space.backbones)
        total = space.patterns[pattern].total
        count = drawn.randint(0, min(most, total))
        slots = _shared_out(space, drawn, sorted(drawn.sample(range(total), count)))
        options = {letter: drawn.choice(legal[letter, backbone]) for letter in slots}
        if len(found) < round(new_shapes * number) and attempt < 50 * number:
            if not options:
                continue
            changed = drawn.choice(list(options)) if len(options) > 1 else next(iter(options))
            replacement = next(x for x in space.replacements if x.letter == changed)
            options[changed] = _other_heads(replacement, options[changed], drawn)
        architecture = _filled(space, pattern, backbone, slots, options)
        refused = any(refusal(space, x) for x in options.values())
        if not refused and with_vocabulary(architecture).id not in known:
            found.setdefault(architecture.id, architecture)
    return list(found.values())


def prepare(space: Space, file: str, folder: Path, named: Sequence[str]) -> tuple[dict[str, Table], list[str]]:
    """Return the study's tables by mode, copied into its folder, and what is to be said about them.

    Those that a person names (on the command line, then in the space) come first, then those beside the space's file.
    Raises ConfigError where a named one is of other conditions or of no use.
    """
    _check_modes(named, "--table", space.budget.modes)
    _check_modes(space.budget.tables, f"{file}: budget.table", space.budget.modes)
    if not space.budget.modes:
        return {}, []
    chosen, beside = (
        [*named, *space.budget.tables],
        sorted((Path(file).parent / FOLDER).glob(f"{Path(file).stem}.*.json")),
    )
    if not chosen and not beside:
        return {}, []
    tables: dict[str, Table] = {}
    news: list[str] = []
    for mode in space.budget.modes:
        wanted = _wanted(space, mode)
        source = _named(chosen, mode) or _beside(beside, wanted, news)
        if source is None:
            continue
        own = folder / f"cost_table.{mode}.json"
        loaded = _copy(source, own)
        warning = check_usable(loaded, wanted, source, named=True)
        tables[mode] = Table(path=own, warning=warning, foreign_card=loaded.key.card != wanted.card)
        news.append(f"{mode}: costs from {source}, {_size(loaded)}")
        news += [f"warning: {warning}"] if warning else []
    return tables, news


def _wanted(space: Space, mode: str) -> Key:
    from archsearch.throughput.conditions import Conditions
    from archsearch.throughput.machine import key_of_this_machine

    return key_of_this_machine(Conditions(**space.budget.conditions(mode)))


def _check_modes(paths: Sequence[str], given: str, modes: Sequence[str]) -> None:
    """Raise ConfigError where a table that was named cannot be read, or is of a mode that the budget has no use for."""
    for path in paths:
        try:
            mode = load_table(path).key.mode
        except ConfigError as error:
            raise ConfigError(f"{given}: {error}") from None
        if mode not in modes:
            needed = " and ".join(modes) or "no measured speed or memory"
            raise ConfigError(f"{given}: must be of what the budget needs, {needed}; {path} is of {mode}")


def _named(paths: Sequence[str], mode: str) -> Path | None:
    """Return the first of the named tables that is of this mode."""
    return next((Path(path) for path in paths if load_table(path).key.mode == mode), None)


def _beside(paths: Sequence[Path], wanted: Key, news: list[str]) -> Path | None:
    """Return the first table beside the space that holds here; why one of the right conditions does not is news."""
    for path in paths:
        table = load_table(path)
        if not table.key.same_conditions(wanted):
            continue
        try:
            check_usable(table, wanted, path, named=False)
        except ConfigError as error:
            news.append(f"not used: {error}")
            continue
        return path
    return None


def _copy(source: Path, own: Path) -> CostTable:
    """Copy a table into the study's folder, unless what is there was copied from it and has grown since."""
    table = load_table(source)
    with locked(own):  # another worker may be adding to it
        if own.exists():
            known = load_table(own)
            if known.key == table.key and known.anchor == table.anchor:
                table.take_in(known, own)
        table.save(own)
    return table


def _size(table: CostTable) -> str:
    return f"{len(table.costs)} parts, {len(table.wholes)} whole patterns"


def _filled(
    space: Space,
    pattern: str,
    backbone: str,
    slots: Mapping[str, tuple[int, ...]],
    options: Mapping[str, MixerOptions],
) -> Architecture:
    """Return the model with each letter's slots filled, whether the space allows these places or not."""
    fillings = [
        Filling(
            letter=x.letter,
            count=len(slots.get(x.letter, ())),
            placement="free",
            slots=slots.get(x.letter, ()),
            options=options.get(x.letter),
        )
        for x in space.replacements
    ]
    architecture = build(space, fillings, pattern=pattern, backbone=backbone).architecture
    assert architecture is not None
    return architecture


def _one_of(drawn: random.Random, values: Sequence[str]) -> str:
    return drawn.choice(values) if len(values) > 1 else values[0]


def _shared_out(space: Space, drawn: random.Random, slots: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return which letter gets which of the slots."""
    letters = [x.letter for x in space.replacements]
    owners = {slot: _one_of(drawn, letters) for slot in slots}
    shared = {letter: tuple(slot for slot in slots if owners[slot] == letter) for letter in letters}
    return {letter: own for letter, own in shared.items() if own}


def _other_heads(replacement: Replacement, options: MixerOptions, drawn: random.Random) -> MixerOptions:
    """Return a shape with another number of heads, up to 30 % fewer or more."""
    matched = next((name for name, choice in replacement.choices.items() if isinstance(choice, Match)), "num_heads")
    heads = getattr(options, matched, None)
    if not isinstance(heads, int):
        return options
    changed = max(1, round(heads * drawn.uniform(0.7, 1.3)))
    return dataclasses.replace(options, **{matched: changed if changed != heads else heads + 1})
