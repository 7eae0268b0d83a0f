"""An order in which the parts of a mixture take turns, any place of it by its number."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise

MODULUS = 2**32
STEP = 2654435769  # the odd number nearest to MODULUS divided by the golden ratio
OFFSET = MODULUS // 2


@dataclass(frozen=True)
class Interleaving:
    """Place i belongs to the part whose stretch of [0, 1) holds (0.5 + i / golden ratio) mod 1.

    The stretches are as long as the weights. The points spread as evenly as those of any such rule, so at every place
    the parts have had their shares of the places so far up to about one turn, and no part comes in bursts.
    """

    weights: tuple[float, ...]

    @property
    def bounds(self) -> list[int]:
        """Where the stretches begin and end, as multiples of 1 / MODULUS."""
        total = sum(self.weights)
        return [0, *(round(MODULUS * share / total) for share in accumulate(self.weights))]

    def place(self, index: int) -> tuple[int, int]:
        """Return the part that place `index` belongs to, and how many of its places there were before."""
        bounds = self.bounds
        part = bisect_right(bounds, (STEP * index + OFFSET) % MODULUS) - 1
        return part, _count_below(index, bounds[part + 1]) - _count_below(index, bounds[part])

    def counts(self, index: int) -> list[int]:
        """Return how many of the places before `index` each part has had."""
        return [_count_below(index, high) - _count_below(index, low) for low, high in pairwise(self.bounds)]


def _count_below(index: int, bound: int) -> int:
    """Return for how many i < `index` the point is below `bound`, in O(log MODULUS) operations.

    x mod m < b exactly where floor(x / m) is one more than floor((x - b) / m); shifted by m, no number is negative.
    """
    shifted = OFFSET + MODULUS
    return _floor_sum(index, STEP, shifted) - _floor_sum(index, STEP, shifted - bound)


def _floor_sum(n: int, a: int, b: int, m: int = MODULUS) -> int:
    """Return the sum of floor((a i + b) / m) over 0 <= i < n, by Euclid's algorithm."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        last = a * n + b
        n, b = divmod(last, m)
        a, m = m, a
    return total
