import pytest

from archsearch.search.rows import Result, Row
from archsearch.search.selection import Confirmed, estimate, finalists, winner


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
