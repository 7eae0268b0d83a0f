"""Finite groups as multiplication tables."""

from __future__ import annotations

import re
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError

MAX_ORDER = 720


def multiplication_table(name: str) -> NDArray[np.int64]:
    """Return `table[a, b]` = a · b `[order, order]` of `S<n>`, `A<n>` or `Z<n>`; element 0 is the identity.

    Z<n> adds modulo n. The elements of S<n> are the permutations of n points in lexicographic order, those of A<n> the
    even ones among them, and a · b means first a, then b. Raises ConfigError.
    """
    match = re.fullmatch(r"([SAZ])([1-9]\d*)", name)
    if match is None:
        raise ConfigError(f"data.group: must be S<n>, A<n> or Z<n>, such as S3, A5 or Z60; got {name!r}")
    kind, n = match[1], int(match[2])
    if n > (MAX_ORDER if kind == "Z" else 6):
        raise ConfigError(f"data.group: must have at most {MAX_ORDER} elements; got {name!r}")
    if kind == "Z":
        return np.add.outer(np.arange(n), np.arange(n)) % n
    elements = [p for p in permutations(range(n)) if kind == "S" or _is_even(p)]
    index = {element: i for i, element in enumerate(elements)}
    return np.array([[index[tuple(b[point] for point in a)] for b in elements] for a in elements])


def _is_even(permutation: tuple[int, ...]) -> bool:
    inversions = sum(a > b for i, a in enumerate(permutation) for b in permutation[i:])
    return inversions % 2 == 0
