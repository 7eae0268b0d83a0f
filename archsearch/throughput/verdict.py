"""What a handful of noisy ratios says about a budget."""

from __future__ import annotations

import math
import statistics
from typing import Literal

from scipy.special import stdtr, stdtrit

Verdict = Literal["feasible", "infeasible", "undecided"]

KNOWN_WITHIN = 0.01
"""Without a budget, a ratio is known once half its confidence interval is at most this."""


class LogRatio:
    """The median ratio over rounds, treated on the log scale with a spread that a stalled round cannot move far.

    The median's standard error is 1.2533 s / sqrt(n), s = 1.4826 x median absolute deviation (both exact for normal
    noise), never below 0.1 %; its distribution is taken as Student's t with n - 1 degrees of freedom.
    """

    def __init__(self, confidence: float, at_least: float | None = None) -> None:
        self.confidence, self.at_least = confidence, at_least
        self._logs: list[float] = []

    def add(self, ratio: float) -> None:
        """Take the ratio of one round: 1 is as fast as the anchor, above is faster."""
        self._logs.append(math.log(ratio))

    def median(self) -> float:
        return math.exp(statistics.median(self._logs))

    def interval(self) -> tuple[float, float]:
        """Return the two-sided confidence interval of the ratio."""
        center, width = statistics.median(self._logs), self._half_width()
        return math.exp(center - width), math.exp(center + width)

    def probability(self) -> float | None:
        """Return P(ratio >= at_least)."""
        if self.at_least is None:
            return None
        excess = statistics.median(self._logs) - math.log(self.at_least)
        return float(stdtr(len(self._logs) - 1, excess / self._standard_error()))

    def verdict(self) -> Verdict | None:
        """Return what the budget says; `undecided` while neither answer reaches the confidence."""
        probability = self.probability()
        if probability is None:
            return None
        if probability >= self.confidence:
            return "feasible"
        return "infeasible" if probability <= 1 - self.confidence else "undecided"

    def is_known(self) -> bool:
        """Return whether more rounds are not needed."""
        return self._half_width() <= KNOWN_WITHIN if self.at_least is None else self.verdict() != "undecided"

    def _half_width(self) -> float:
        return float(stdtrit(len(self._logs) - 1, 0.5 + self.confidence / 2)) * self._standard_error()

    def _standard_error(self) -> float:
        center = statistics.median(self._logs)
        deviation = statistics.median(abs(x - center) for x in self._logs)
        return max(1.2533 * 1.4826 * deviation / math.sqrt(len(self._logs)), 1e-3)
