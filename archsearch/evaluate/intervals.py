"""Intervals for figures over rows: what was drawn are rows (or documents), not the tokens in them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A figure with its 95 % interval, which a single row does not give."""

    value: float
    low: float | None
    high: float | None


def wilson(successes: float, trials: float) -> Estimate:
    """Return a share and its score interval (Wilson, 1927); it is never empty, not at 0 and not at 1 either."""
    z, share = _normal_quantile(), successes / trials
    scale = 1 + z**2 / trials
    middle = share + z**2 / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    low = (middle - reach) / scale if successes > 0 else 0.0  # exactly, whatever rounding makes of it
    high = (middle + reach) / scale if successes < trials else 1.0
    return Estimate(share, low, high)


def share_of_positions(hits: ArrayLike, scored: ArrayLike) -> Estimate:
    """Return the share of `scored` positions that are `hits`, both per row `[rows]`.

    The positions of a row are not independent: Wilson's interval is that of as many rows of one position each as would
    have the variance that is seen between rows, made wider for having estimated it (Korn and Graubard, 1998).
    """
    rows, share, error = _ratio(hits, scored)
    if rows < 2:
        return Estimate(share, *wilson(share, 1)[1:])
    effective = float(rows) if error == 0 else share * (1 - share) / error**2
    narrower = (_normal_quantile() / _student_quantile(rows - 1)) ** 2
    return Estimate(share, *wilson(share * effective * narrower, effective * narrower)[1:])


def mean_of_positions(sums: ArrayLike, scored: ArrayLike) -> Estimate:
    """Return the mean over all `scored` positions of what `sums` adds up, both per row `[rows]`.

    The interval is Student's for a ratio of two means over rows.
    """
    rows, mean, error = _ratio(sums, scored)
    if rows < 2:
        return Estimate(mean, None, None)
    reach = _student_quantile(rows - 1) * error
    return Estimate(mean, mean - reach, mean + reach)


def _ratio(numerators: ArrayLike, denominators: ArrayLike) -> tuple[int, float, float]:
    """Return the number of rows that count, the ratio of the sums, and its standard error by linearisation."""
    x: NDArray[Any] = np.asarray(numerators, dtype=np.float64)
    n: NDArray[Any] = np.asarray(denominators, dtype=np.float64)
    x, n = x[n > 0], n[n > 0]
    rows, total = len(n), n.sum()
    ratio = x.sum() / total
    if rows < 2:
        return rows, float(ratio), math.nan
    variance = rows / (rows - 1) * ((x - ratio * n) ** 2).sum() / total**2
    return rows, float(ratio), float(np.sqrt(variance))


def _normal_quantile() -> float:
    return float(ndtri((1 + CONFIDENCE) / 2))


def _student_quantile(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
