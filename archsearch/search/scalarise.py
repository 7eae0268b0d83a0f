"""Several objectives in one number, by weights drawn at random: each draw looks at another part of the front."""

from __future__ import annotations

import random

import numpy as np

from archsearch.search.surrogate import Array, standardised

SUM_SHARE = 0.05
"""Of the weighted sum beside the worst shortfall: without it what is dominated could be as good as the front."""


def scalarised(values: Array, drawing: random.Random) -> Array:
    """Return one number `[N]` for the values `[N, objectives]`, more is better in both; a single objective as it is.

    The augmented Tchebycheff function of ParEGO (Knowles 2006, IEEE Trans. Evol. Comput. 10(1), eq. 2): whatever the
    front's shape, each of its members is the best for some weights, which no weighted sum does where it is not convex.
    """
    if values.shape[1] == 1 or not len(values):
        return standardised(values[:, 0]) if len(values) else np.zeros(0)
    drawn = np.array([drawing.expovariate(1) for _ in range(values.shape[1])])  # their shares: even on the simplex
    weighted = _shortfalls(values) * drawn / drawn.sum()
    result: Array = -(weighted.max(1) + SUM_SHARE * weighted.sum(1))
    return result


def _shortfalls(values: Array) -> Array:
    """Return how far each value is from its objective's best, as a share of the way to its worst.

    By values, not by ranks, which would widen whatever part of the front has many trials already; and standardised
    first, so that a loss of 200 does not make all others alike.
    """
    bent = np.stack([standardised(column) for column in values.T], axis=1)
    best, worst = bent.max(0), bent.min(0)
    result: Array = (best - bent) / np.maximum(best - worst, 1e-9)
    return result
