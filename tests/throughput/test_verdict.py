import math
import random

import pytest

from archsearch.throughput.verdict import LogRatio


def judge(ratio, at_least, noise, seed, rounds=15):
    rng = random.Random(seed)
    judged = LogRatio(0.95, at_least)
    for _ in range(rounds):
        judged.add(ratio * math.exp(rng.gauss(0, noise)))
    return judged


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says():
    intervals = [judge(0.9, None, 0.05, seed).interval() for seed in range(400)]
    covered = sum(low <= 0.9 <= high for low, high in intervals)
    assert 0.90 <= covered / 400 <= 0.99


def test_a_verdict_is_rarely_wrong():
    wrong = sum(judge(0.9, 0.92, 0.03, seed).verdict() == "feasible" for seed in range(400))
    assert wrong / 400 <= 0.05
    sure = sum(judge(0.85, 0.92, 0.03, seed).verdict() == "infeasible" for seed in range(400))
    assert sure / 400 >= 0.95


def test_on_the_budget_there_is_no_verdict_most_of_the_time():
    undecided = sum(judge(0.9, 0.9, 0.03, seed).verdict() == "undecided" for seed in range(400))
    assert undecided / 400 >= 0.8


def test_one_stalled_round_changes_nothing():
    judged = judge(1.0, 0.9, 0.01, seed=1)
    judged.add(0.1)
    assert judged.verdict() == "feasible"
    assert judged.median() == pytest.approx(1.0, abs=0.02)


def test_without_a_budget_there_is_no_verdict_but_the_ratio_is_known():
    judged = judge(0.5, None, 0.001, seed=2)
    assert judged.verdict() is None
    assert judged.probability() is None
    assert judged.is_known()
    assert not judge(0.5, None, 0.2, seed=2).is_known()
