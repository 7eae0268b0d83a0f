"""Sequential verdicts: looked at after every round, and still as seldom wrong as they say."""

import math
import random

import pytest

from archsearch.throughput.verdict import LogRatio, log_wealth

RUNS = 300


def rounds(ratio, noise, seed, number=40):
    """Ratios with normal noise on the log scale, one round in twenty held up by half."""
    drawn = random.Random(seed)
    for _ in range(number):
        yield ratio * math.exp(drawn.gauss(0, noise)) * (0.5 if drawn.random() < 0.05 else 1.0)


def judge(ratio, at_least, noise, seed, number=40):
    """Look after every round and stop as soon as it is sure, as measuring does."""
    judged = LogRatio(0.95, at_least)
    for value in rounds(ratio, noise, seed, number):
        judged.add(value)
        if at_least is not None and judged.is_known():
            break
    return judged


def test_looking_after_every_round_does_not_make_wrong_verdicts_frequent():
    wrong = sum(judge(0.9 * 0.999, 0.9, 0.03, seed, 100).verdict() == "feasible" for seed in range(RUNS))
    assert wrong / RUNS <= 0.05
    wrong = sum(judge(0.9, 0.9 * 0.9985, 0.002, seed, 100).verdict() == "infeasible" for seed in range(RUNS))
    assert wrong / RUNS <= 0.05


def test_what_misses_the_budget_clearly_is_found_out_soon():
    judged = [judge(0.85, 0.92, 0.01, seed) for seed in range(RUNS)]
    assert sum(x.verdict() == "infeasible" for x in judged) >= 0.99 * RUNS
    assert sorted(x.rounds for x in judged)[RUNS // 2] == 5
    met = [judge(0.94 * 1.01, 0.94, 0.003, seed) for seed in range(RUNS)]
    assert sum(x.verdict() == "feasible" for x in met) >= 0.99 * RUNS


def test_on_the_budget_there_is_no_verdict_most_of_the_time():
    undecided = sum(judge(0.9, 0.9, 0.03, seed).verdict() == "undecided" for seed in range(RUNS))
    assert undecided / RUNS >= 0.9


def test_the_interval_holds_the_true_median_at_all_times_at_once():
    held = 0
    for seed in range(RUNS):
        judged, always = LogRatio(0.95), True
        for value in (0.9 * math.exp(random.Random(1000 * seed + i).gauss(0, 0.05)) for i in range(60)):
            judged.add(value)
            low, high = judged.interval()
            always &= low <= 0.9 <= high
        held += always
    assert held / RUNS >= 0.95


def test_a_few_rounds_have_no_interval_and_many_a_narrow_one():
    assert judge(0.9, None, 0.01, seed=0, number=5).interval() == (0.0, math.inf)
    low, high = judge(0.9, None, 0.01, seed=0, number=6).interval()
    assert 0 < low < 0.9 < high
    assert judge(0.5, None, 0.001, seed=2).is_known()
    assert not judge(0.5, None, 0.2, seed=2).is_known()


def test_processes_differ_by_a_thousandth_so_that_nothing_closer_is_told_apart():
    judged = LogRatio(0.95, 0.9)
    for _ in range(200):
        judged.add(0.9 * 1.0005)
    assert judged.verdict() == "undecided"


def test_probability_is_the_confidence_that_the_evidence_has_reached():
    sure = LogRatio(0.95, 0.9)
    for _ in range(5):
        sure.add(1.0)
    assert sure.probability() == pytest.approx(1 - 1 / (0.5 * 2**5 + 0.5 * 63 / 6))
    assert LogRatio(0.95).probability() is None
    assert LogRatio(0.95).verdict() is None


def test_the_wealth_of_a_bet_is_fair():
    """Its mean is 1 where the rounds fall as a coin does: no bet wins by itself."""
    for number in (1, 4, 9):
        chances = [math.comb(number, hits) / 2**number for hits in range(number + 1)]
        assert sum(p * math.exp(log_wealth(hits, number)) for hits, p in enumerate(chances)) == pytest.approx(1.0)
    assert math.exp(log_wealth(700, 1000)) > 1e30
    assert log_wealth(0, 3000) < math.log(1e-3)
