import random
from dataclasses import replace

import pytest

from archsearch.search.rows import Result, Row
from archsearch.search.selection import Confirmed, comparisons, estimate, finalists, ties, winner


def row(number, accuracy, loss=1.0, given=None, outcome="completed"):
    metrics = {"s3": {"accuracy/16": accuracy, "loss": loss}}
    return Row(number=number, given=given, description=None, result=Result(outcome=outcome, metrics=metrics))


def confirmed(number, accuracies, loss=1.0, outcome="completed"):
    metrics = {seed: {"s3": {"accuracy/16": x, "loss": loss}} for seed, x in enumerate(accuracies)}
    return Confirmed(row=row(number, 0, outcome=outcome), metrics=metrics, failures={})


def test_an_interval_is_students():
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5)  # t(0.975, 2) s / sqrt(3)


def test_one_seed_has_no_interval_and_counts_as_a_tie():
    found = estimate([1.0])
    assert (found.mean, found.low, found.is_tie) == (1.0, None, True)
    assert estimate([]) is None


def test_differences_are_taken_on_the_same_seeds(parse):
    objective = parse().objectives[0]
    base = confirmed(0, [0.1, 0.5, 0.9])
    better = confirmed(1, [0.2, 0.61, 1.0]).difference(base, objective)
    assert better.mean == pytest.approx(0.31 / 3)
    assert not better.is_tie
    assert confirmed(2, [0.2, 0.4, 0.9]).difference(base, objective).is_tie
    assert confirmed(3, [0.2]).difference(base, objective).seeds == 1


def test_the_best_mean_wins_and_the_next_objective_breaks_ties(parse):
    space = parse()
    first, second, third = (
        confirmed(1, [0.5, 0.7], loss=2.0),
        confirmed(2, [0.7, 0.5], loss=1.0),
        confirmed(3, [0.9, 0.1]),
    )
    assert winner(space, [first, second, third]) is second


def test_what_the_budget_refuses_cannot_win(parse):
    refused = confirmed(1, [0.9, 0.9], outcome="refused")
    good = confirmed(2, [0.1, 0.1])
    assert winner(parse(), [refused, good]) is good
    assert winner(parse(), [refused]) is None


def test_the_best_feasible_ones_are_confirmed(parse):
    rows = [row(1, 0.5), row(2, 0.9, outcome="refused"), row(3, 0.7), row(4, 0.7, loss=0.5)]
    assert [x.number for x in finalists(parse({"study.confirm.top": 2}), rows)] == [4, 3]


def test_the_intervals_of_several_differences_hold_together(parse):
    objective = parse().objectives[0]
    base, better = confirmed(0, [0.0, 0.0, 0.0]), confirmed(1, [1.0, 2.0, 3.0])
    alone, one_of_three = better.difference(base, objective), better.difference(base, objective, 3)
    assert alone.high - alone.mean == pytest.approx(4.302653 / 3**0.5)
    assert one_of_three.high - one_of_three.mean == pytest.approx(7.648804 / 3**0.5)  # t(1 - 0.05 / 6, 2)
    assert one_of_three.mean == alone.mean == 2


def test_a_winner_by_luck_passes_for_better_no_more_often_than_it_may(parse):
    """Three candidates just as good as the base: the best of them is declared to be better in 2.5 % at most."""
    space, drawn, declared, held, studies = parse(), random.Random(0), 0, 0, 2000
    for _ in range(studies):
        everyone = [confirmed(number, [drawn.gauss(0, 1) for _ in range(3)]) for number in range(4)]
        base, candidates = replace(everyone[0], row=row(0, 0, given="base")), everyone[1:]
        best = winner(space, candidates)
        found = best.difference(base, space.objectives[0], comparisons([*candidates, base]))
        declared += found.low > 0
        held += found.low <= 0 <= found.high
    assert declared / studies <= 0.025  # by intervals that hold one by one: 0.05
    assert held / studies > 0.95


def test_what_the_seeds_cannot_tell_from_the_winner_is_named(parse):
    space = parse()
    first, close, far = confirmed(1, [0.8, 0.9, 0.7]), confirmed(2, [0.79, 0.7, 0.85]), confirmed(3, [0.1, 0.2, 0.001])
    refused = confirmed(4, [0.8, 0.9, 0.7], outcome="refused")
    assert ties(space, [first, close, far, refused]) == [close]
    assert ties(space, [refused]) == []
