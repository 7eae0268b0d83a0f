import math

import numpy as np
import pytest

from archsearch.evaluate.intervals import mean_of_positions, share_of_positions, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_published_one(successes, trials, low, high):
    found = wilson(successes, trials)
    assert found == pytest.approx((successes / trials, low, high), abs=5e-5)
    mirrored = wilson(trials - successes, trials)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_all_right_is_not_certain_and_reaches_exactly_one():
    found = wilson(7, 7)
    assert found.high == 1.0
    assert 0.5 < found.low < 0.7
    assert wilson(0, 7).low == 0.0


@pytest.mark.parametrize(("trials", "share"), [(20, 0.5), (40, 0.1), (100, 0.95), (256, 0.02)])
def test_wilsons_interval_holds_the_truth_95_times_in_100(trials, share):
    chances = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    covered = [wilson(k, trials).low <= share <= wilson(k, trials).high for k in range(trials + 1)]
    assert 0.92 < sum(chance for chance, holds in zip(chances, covered, strict=True) if holds) < 0.98


def test_rows_whose_positions_are_all_alike_count_once():
    """A coin per row, shown at each of its 25 positions: 1,000 intervals, those over positions are far too narrow."""
    rng = np.random.default_rng(0)
    heads = rng.random((1000, 40)) < 0.3
    found = [share_of_positions(25 * rows, np.full(40, 25)) for rows in heads]
    assert [x.value for x in found] == pytest.approx(heads.mean(1))
    assert 0.93 < np.mean([x.low <= 0.3 <= x.high for x in found]) < 0.98
    naive = [wilson(25 * rows.sum(), 25 * 40) for rows in heads]
    assert np.mean([x.low <= 0.3 <= x.high for x in naive]) < 0.4


def test_independent_positions_narrow_the_interval():
    rng = np.random.default_rng(0)
    hits = rng.binomial(25, 0.3, size=(1000, 40))
    found = [share_of_positions(rows, np.full(40, 25)) for rows in hits]
    assert 0.93 < np.mean([x.low <= 0.3 <= x.high for x in found]) < 0.98
    assert np.mean([x.high - x.low for x in found]) == pytest.approx(2 * 1.96 * math.sqrt(0.21 / 1000), rel=0.1)


def test_rows_without_variance_count_once_each():
    assert share_of_positions([5, 5, 5], [5, 5, 5]).low < 0.5
    assert share_of_positions([5, 5, 5], [5, 5, 5]).high == 1.0
    assert share_of_positions([3], [4]).low < 0.3


def test_a_mean_has_students_interval():
    reach = 2.776445 * math.sqrt(2.5 / 5)
    assert mean_of_positions([1, 2, 3, 4, 5], [1] * 5) == pytest.approx((3, 3 - reach, 3 + reach))
    assert mean_of_positions([8.0], [4]) == (2.0, None, None)


def test_a_mean_weighs_positions_and_its_interval_counts_rows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, size=(1000, 60))
    levels = 2 + rng.normal(size=(1000, 60))  # of a row; its positions share it
    found = [mean_of_positions(n * level, n) for n, level in zip(lengths, levels, strict=True)]
    assert found[0].value == pytest.approx((lengths[0] * levels[0]).sum() / lengths[0].sum())
    assert 0.92 < np.mean([x.low <= 2 <= x.high for x in found]) < 0.97


def test_rows_where_nothing_is_scored_do_not_count():
    assert mean_of_positions([1, 2, 0, 3], [1, 1, 0, 1]) == mean_of_positions([1, 2, 3], [1, 1, 1])
