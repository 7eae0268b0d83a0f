import dataclasses

import pytest

from archsearch.config import Where
from archsearch.search.budget import (
    Check,
    check_exact,
    check_measured,
    from_plain,
    parse_budget,
    state_bytes,
    to_plain,
)
from archsearch.throughput.measure import Measurement

MEASURED = Measurement(
    architecture_id="x",
    tokens_per_second=90.0,
    base_tokens_per_second=100.0,
    ratio=0.9,
    ratio_low=0.8,
    ratio_high=1.0,
    probability=None,
    verdict="feasible",
    peak_memory_bytes=200,
    device="CPU",
    rounds=5,
    seconds=1.0,
)


def budget(parse, **written):
    return parse_budget(written, parse().base, Where("space.yaml", "budget"))


def test_exact_limits_are_held_against_the_formulas(parse):
    base = parse().base
    limits = budget(parse, parameters={"at_most": base.num_parameters()}, state_bytes={"at_least": 1, "at_most": 100})
    checks = {check.name: check for check in check_exact(limits, base)}
    assert state_bytes(base) == 4 * 8 * 16 * 4
    assert checks["parameters"].violation == 0
    assert checks["parameters"].verdict == "feasible"
    assert checks["state_bytes.at_least"].violation < 0
    assert checks["state_bytes.at_most"].violation == pytest.approx(2048 / 100 - 1)
    assert checks["state_bytes.at_most"].reason == "state_bytes.at_most 2,048, must be at most 100"


def test_a_fraction_is_taken_of_another_architecture(parse):
    base = parse().base
    (limit,) = budget(parse, parameters={"at_most": 0.5, "of": "R4"}).parameters
    assert limit.at_most == 0.5 * base.with_pattern("R4").num_parameters()


@pytest.mark.parametrize(
    ("changes", "violation", "verdict"),
    [
        ({"ratio": 0.9, "verdict": "feasible"}, -0.8, "feasible"),
        ({"ratio": 0.4, "verdict": "infeasible"}, 0.2, "infeasible"),
        ({"ratio": 0.51, "verdict": "undecided"}, 1e-6, "undecided"),
        ({"ratio": 0.49, "verdict": "feasible"}, 0.0, "feasible"),
    ],
)
def test_throughput_follows_the_verdict_not_the_median(parse, changes, violation, verdict):
    limits = budget(parse, train_tokens_per_second={"at_least": 0.5, "of": "base"})
    (check,) = check_measured(limits, dataclasses.replace(MEASURED, **changes))
    assert check.violation == pytest.approx(violation)
    assert check.verdict == verdict


def test_an_undecided_candidate_is_refused_and_told_so():
    check = Check(name="speed", value=0.51, limit="at least 0.5 of base", violation=1e-6, verdict="undecided")
    assert (
        check.reason == "speed 0.51, must be at least 0.5 of base (undecided at the time limit, counts as infeasible)"
    )


@pytest.mark.parametrize(("at_least", "verdict"), [(79, "feasible"), (85, "undecided"), (101, "infeasible")])
def test_a_number_of_tokens_is_judged_by_the_interval(parse, at_least, verdict):
    (check,) = check_measured(budget(parse, train_tokens_per_second={"at_least": at_least}), MEASURED)
    assert check.verdict == verdict
    assert (check.violation <= 0) == (verdict == "feasible")


def test_memory_is_an_upper_bound(parse):
    (check,) = check_measured(budget(parse, peak_memory={"at_most": 100}), MEASURED)
    assert check.violation == 1


def test_a_budget_survives_the_way_to_a_trial(parse):
    limits = budget(
        parse,
        parameters={"at_most": 1.1, "of": "base"},
        peak_memory={"at_most": "72GiB"},
        train_tokens_per_second={"at_least": 0.3, "of": "base"},
    )
    again = from_plain(to_plain(limits), Where("config.yaml"))
    assert again.train_tokens_per_second.anchor.id == parse().base.id
    assert dataclasses.replace(again, train_tokens_per_second=None) == dataclasses.replace(
        limits, train_tokens_per_second=None
    )
