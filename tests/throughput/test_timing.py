"""What a benchmark makes of its times, and what a recurrence needs at least."""

from __future__ import annotations

import pytest

from archsearch.throughput.limits import Limits, m2rnn_work
from archsearch.throughput.timing import summarise


def test_the_interval_holds_the_true_median_nineteen_times_out_of_twenty() -> None:
    import random

    drawn = random.Random(0)
    held = 0
    for _ in range(2000):
        times = summarise([drawn.expovariate(1.0) for _ in range(40)])
        held += times.low <= 0.6931 <= times.high
    assert 0.94 <= held / 2000 <= 0.98


def test_one_outlier_moves_neither_median_nor_interval() -> None:
    times = [1.0 + i / 1000 for i in range(40)]
    assert summarise([*times, 50.0]).high < 1.04


def test_work_counts_every_product_of_the_recurrence() -> None:
    forward = m2rnn_work(2, 3, 5, 7, 11, backward=False)
    both = m2rnn_work(2, 3, 5, 7, 11, backward=True)
    states, square, area = 2 * 3 * 5, 7 * 11 * 11, 7 * 11
    assert forward.flops == 2 * states * (square + 2 * area)
    assert both.flops == 2 * states * (5 * square + 8 * area)
    assert (forward.specials, both.specials) == (states * area, 3 * states * area)
    assert forward.bytes == 6 * 2 * (2 * 7 + 5 * 11) + states * 4 + states * 11 * 2


def test_a_share_is_the_least_time_over_the_time_taken() -> None:
    limits = Limits(flops=1e12, bytes=None, specials=1e9)
    work = m2rnn_work(1, 10, 1, 4, 4, backward=False)
    shares = work.shares(limits, seconds=1e-6)
    assert shares["arithmetic"] == pytest.approx(work.flops / 1e6)
    assert shares["memory"] is None
    assert shares["special functions"] == pytest.approx(work.specials / 1e3)
