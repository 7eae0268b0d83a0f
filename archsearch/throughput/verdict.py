"""What a sequence of noisy rounds says about a ratio, however often one looks.

Who looks after every round and stops once the answer is sure is wrong more often than a test of fixed size says.
So the evidence here is a test martingale: a bet, from a stake of 1, on which side of a target the next round falls.
If the median lies on the other side, the chance that its wealth ever reaches 1 / alpha is at most alpha (Ville's
inequality), whenever one stops. It asks nothing of the noise but that rounds are independent: stalls and long tails
cannot mislead it, for a round counts by its side alone. Rounds that are like their neighbours mislead it more often.
"""

from __future__ import annotations

import math
import statistics
from functools import cache
from typing import Literal

from scipy.special import betainc, betaln

Verdict = Literal["feasible", "infeasible", "undecided"]

KNOWN_WITHIN = 0.01
"""Without a budget, a ratio is known once half its confidence interval is at most this."""

REPEATABLE_WITHIN = 1e-3
"""Two processes differ by so much in what each measures without end: nothing closer than this is told apart."""

LEAST_ROUNDS = 6
"""As many rounds on one side prove it at a confidence of 95 %, in both directions."""


class LogRatio:
    """The ratio of each round on the log scale, against the target `at_least`, if there is one.

    Its interval is a confidence sequence of the median: with the given probability it holds the true one at all times
    at once. The same works for tokens/s against a number of tokens/s.
    """

    def __init__(self, confidence: float, at_least: float | None = None) -> None:
        self.confidence, self.at_least = confidence, at_least
        self._logs: list[float] = []
        self._above, self._below = Bet(), Bet()

    def add(self, ratio: float) -> None:
        """Take the ratio of one round: 1 is as fast as the anchor, above is faster."""
        value = math.log(ratio)
        self._logs.append(value)
        if self.at_least is not None:
            excess = value - math.log(self.at_least)
            self._above.add(excess > REPEATABLE_WITHIN)
            self._below.add(excess < -REPEATABLE_WITHIN)

    @property
    def rounds(self) -> int:
        return len(self._logs)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Those of all rounds, in order."""
        return tuple(map(math.exp, self._logs))

    def median(self) -> float:
        return math.exp(statistics.median(self._logs))

    def interval(self) -> tuple[float, float]:
        """Return the two-sided confidence interval of the ratio: order statistics; (0, inf) after too few rounds."""
        ordered, rank = sorted(self._logs), _outermost_rank(len(self._logs), (1 - self.confidence) / 2)
        if rank is None:
            return 0.0, math.inf
        return math.exp(ordered[rank] - REPEATABLE_WITHIN), math.exp(ordered[-1 - rank] + REPEATABLE_WITHIN)

    def probability(self) -> float | None:
        """Return P(ratio >= at_least), as the evidence has ever supported it: 0.5 where it supports neither side."""
        if self.at_least is None:
            return None
        too_slow, fast_enough = self._above.p_value(), self._below.p_value()
        return max(0.5, 1 - too_slow) if too_slow < fast_enough else min(0.5, fast_enough)

    def verdict(self) -> Verdict | None:
        """Return what the budget says; `undecided` while neither answer reaches the confidence."""
        return verdict_of(self.probability(), self.confidence)

    def is_known(self) -> bool:
        """Return whether more rounds are not needed."""
        if self.at_least is not None:
            return self.verdict() != "undecided"
        return self.is_narrow()

    def is_narrow(self) -> bool:
        """Return whether the interval alone says enough."""
        low, high = self.interval()
        return low > 0 and math.log(high / low) / 2 <= KNOWN_WITHIN + REPEATABLE_WITHIN


def verdict_of(probability: float | None, confidence: float) -> Verdict | None:
    """Return what P(a target is reached) says, None where there is no target."""
    if probability is None:
        return None
    if probability >= confidence:
        return "feasible"
    return "infeasible" if probability <= 1 - confidence else "undecided"


class Bet:
    """The wealth of betting that rounds fall on one side more often than not."""

    def __init__(self) -> None:
        self._rounds = self._hits = 0
        self._most = 0.0

    def add(self, hit: bool) -> None:
        """Settle the bet on one round."""
        self._rounds += 1
        self._hits += hit
        self._most = max(self._most, log_wealth(self._hits, self._rounds))

    def p_value(self) -> float:
        """Return the probability that, betting on the wrong side, one would ever have come to as much."""
        return math.exp(-self._most)


@cache
def log_wealth(hits: int, rounds: int) -> float:
    """Return the log of the wealth after `hits` of `rounds`.

    Half the stake bets on every round with all it has, which answers clear cases soonest (2^n after n hits, 0 after
    a miss); the other half is spread evenly over all probabilities p from 1/2 to 1: the integral of
    2 (2 p)^hits (2 (1 - p))^misses over them.
    """
    misses = rounds - hits
    tail = float(betainc(misses + 1, hits + 1, 0.5))
    if tail == 0:  # too few hits by far
        return -math.inf
    spread = (rounds + 1) * math.log(2) + float(betaln(hits + 1, misses + 1)) + math.log(tail)
    everything = rounds * math.log(2) if misses == 0 else -math.inf
    high, low = max(spread, everything), min(spread, everything)
    return high + math.log1p(math.exp(low - high)) - math.log(2)


@cache
def _outermost_rank(rounds: int, alpha: float) -> int | None:
    """Return how many of the smallest rounds lie outside an interval that misses the median below with `alpha`.

    A value below `r` rounds or fewer can be the median unless betting against it, on all the others, has won 1 / alpha.
    """
    bar = -math.log(alpha)
    rank = None
    for smaller in range(rounds // 2):
        if log_wealth(rounds - smaller, rounds) < bar:
            break
        rank = smaller
    return rank
