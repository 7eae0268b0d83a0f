"""Give the layers of a file that knows no letters a pattern again."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archsearch import registry
from archsearch.architecture import Architecture, BoundMixer, BoundMLP
from archsearch.config import Where
from archsearch.pattern import PatternError, compact, parse

COMMENT = "# letters: "

Kind = tuple[BoundMixer, BoundMLP]
"""What one block consists of."""


def letters_comment(architecture: Architecture) -> str:
    """Return the line by which a reader of ours gives the layers the same letters again."""
    return f"{COMMENT}{compact(architecture.pattern)}"


def find_letters(text: str) -> str | None:
    """Return the expanded pattern that such a line in `text` spells."""
    found = re.search(f"^{re.escape(COMMENT)}(.+)$", text, re.MULTILINE)
    try:
        return parse(found[1]) if found else None
    except PatternError:
        return None


def build(sizes: Mapping[str, Any], layers: Sequence[Kind], letters: str | None, where: Where) -> Architecture:
    """Return the architecture of `layers`, each distinct kind under a letter of its own.

    `letters`, one per layer, are kept where each of them stands for one kind; otherwise a kind gets a letter that
    stands for its mixer by default while one is free, then any other. Raises ConfigError.
    """
    if letters is None or not _fit(letters, layers):
        letters = _choose(layers, where)
    bound = dict(zip(letters, layers, strict=True))
    usual = Counter(mlp for _, mlp in layers).most_common(1)[0][0]
    architecture = Architecture(
        **sizes,
        pattern=letters,
        mixers={letter: mixer for letter, (mixer, _) in bound.items()},
        mlp=usual,
        mlps={letter: mlp for letter, (_, mlp) in bound.items() if mlp != usual},
    )
    architecture.check(where)
    return architecture


def _fit(letters: str, layers: Sequence[Kind]) -> bool:
    if len(letters) != len(layers):
        return False
    return len(set(zip(letters, layers, strict=True))) == len(set(letters))


def _choose(layers: Sequence[Kind], where: Where) -> str:
    taken: dict[Kind, str] = {}
    for kind in layers:
        if kind not in taken:
            letter = next((x for x in _candidates(kind[0].type) if x not in taken.values()), None)
            if letter is None:
                raise where.error(f"holds more than {len(taken)} distinct blocks, for which there are no letters")
            taken[kind] = letter
    return "".join(taken[layer] for layer in layers)


def _candidates(mixer: str) -> Iterator[str]:
    """Yield the letters that may stand for a mixer, those first that do by default."""
    own = registry.get(mixer).letters
    yield from own
    yield from own.lower()
    defaults = registry.default_letters()
    yield from (x for x in string.ascii_letters if x not in defaults)
    yield from string.ascii_letters
