import math

import pytest

from archsearch.search.expected_end import expected_end
from archsearch.search.ledger import gather, kendall, lines
from archsearch.search.rows import Result, Row
from archsearch.search.rungs import Rung

ONE = [{"task": "s3", "metric": "accuracy", "length": 16, "direction": "maximize"}]


def climbed(value, number=1):
    return [Rung(task="s3", number=number, tokens=64, values=[value])]


def row(number, at_rung, end):
    ended = {"outcome": "completed", "metrics": {"s3": {"accuracy/16": end}}}
    result = Result(**ended) if end is not None else Result(outcome="pruned", trained_tokens=100)
    return Row(number=number, given=None, description=None, result=result, rungs=climbed(at_rung))


def test_tau_is_kendalls_with_an_interval():
    then, ends = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 1, 4, 3, 6, 5, 8, 7, 10, 9]  # 5 of 45 pairs the other way round
    tau, low, high = kendall(then, ends)
    assert tau == pytest.approx(35 / 45)
    half = 1.959964 * math.sqrt(0.437 / 6)
    assert math.atanh(tau) - math.atanh(low) == pytest.approx(half, rel=1e-5)
    assert math.atanh(high) - math.atanh(tau) == pytest.approx(half, rel=1e-5)


def test_few_candidates_in_one_order_are_no_proof():
    tau, low, high = kendall([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert tau == pytest.approx(1.0)
    assert high == pytest.approx(1.0)
    assert low < 0.25
    assert kendall(range(40), range(40))[1] > 0.95
    assert kendall([1, 2, 3], [3, 2, 1]) == (-1.0, -1.0, 1.0)
    assert kendall([1, 1, 1], [1, 2, 3]) is None
    assert kendall([1], [1]) is None


def test_the_ledger_is_of_those_that_went_on_and_counts_what_the_others_saved(parse):
    space = parse({"objectives": ONE, "study.pruner": "asha"})
    rows = [row(0, 0.1, 0.3), row(1, 0.2, 0.5), row(2, 0.3, 0.4), row(3, 0.01, None)]
    found = gather(space, rows)
    first, second = found["rungs"]
    assert (first["candidates"], first["tau"]) == (3, pytest.approx(1 / 3))
    assert (second["candidates"], second["tau"]) == (0, None)
    assert (found["pruned"], found["of"]) == (1, 4)
    assert found["tokens"] == {"saved": 540, "without": 4 * 640}
    assert lines(found) == [
        "asha: 1 of 4 trained candidates pruned, 540 of 2,560 tokens saved (21%)",
        "  rung 1 of s3 (64 tokens), s3 accuracy @16: Kendall's tau with the end 0.33 "
        "(95% interval -1.00 to 1.00; 3 candidates)",
        "  rung 2 of s3 (192 tokens), s3 accuracy @16: no rank correlation with the end from 0 candidates",
    ]


def test_rungs_from_before_a_change_that_lie_elsewhere_are_not_counted(parse):
    space = parse({"objectives": ONE, "study.pruner": "asha", "study.reduction": 2})
    assert [entry["candidates"] for entry in gather(space, [row(0, 0.1, 0.3), row(1, 0.2, 0.5)])["rungs"]] == [0, 0]


def test_without_a_pruner_there_is_no_ledger(parse):
    assert gather(parse(), []) is None
    assert lines(None) == []


def test_a_pruned_trial_is_taken_to_end_as_those_that_stood_no_better():
    finished, ends = [climbed(0.1), climbed(0.3), climbed(0.5), climbed(0.0, number=2)], [1.0, 3.0, 9.0, 7.0]
    assert expected_end(climbed(0.4), finished, ends, 0, 1.0) == 2.0
    assert expected_end(climbed(0.05), finished, ends, 0, 1.0) == 1.0  # all stood better: the worst end
    assert expected_end(climbed(0.4), finished, [-x for x in ends], 0, -1.0) == -9.0  # less is better
    assert expected_end(climbed(None), finished, ends, 0, 1.0) == 5.0
