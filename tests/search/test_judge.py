"""The budget's verdict: predicted where that is sure, measured where it is not."""

import dataclasses
import math

import pytest

from archsearch.config import Where
from archsearch.search import judge
from archsearch.search.budget import parse_budget
from archsearch.search.cost_tables import architectures
from archsearch.search.judge import Table, decide, predict, speed_check
from archsearch.search.outlook import look
from archsearch.search.rows import Result, Row
from archsearch.search.tables import cells, headings
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.cost_table import Cost, CostTable, parts_of, with_vocabulary
from archsearch.throughput.machine import key_of_this_machine
from archsearch.throughput.measure import Measurement
from archsearch.throughput.predict import Predictor

SECONDS = {"gated_deltanet": 1.0, "m2rnn": 1.2, "attention": 0.5, "embedding": 2.0}
MEASURED = Measurement(
    architecture_id="x",
    tokens_per_second=90.0,
    base_tokens_per_second=100.0,
    ratio=0.9,
    ratio_low=0.8,
    ratio_high=1.0,
    probability=0.99,
    verdict="feasible",
    peak_memory_bytes=200,
    device="CPU",
    rounds=5,
    seconds=1.0,
    tokens_per_second_low=80.0,
    tokens_per_second_high=100.0,
)


def budget(parse, **written):
    return parse_budget(written, parse().base, Where("space.yaml", "budget"))


def table_for(architectures, mode="train", spread=0.0, size=1e9):
    """A table of one-second blocks, its residuals so small that only the marginals' errors count."""
    found = CostTable(key=key_of_this_machine(Conditions(mode=mode, device="cpu")), layers=1)
    for architecture in map(with_vocabulary, architectures):
        for part in parts_of(architecture):
            seconds = next(value for name, value in SECONDS.items() if part.startswith(name))
            found.costs[part] = Cost(label=part, seconds=seconds, error=spread, bytes=size)
    return found


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """Take the table at its word: its residuals are nothing here."""
    monkeypatch.setattr("archsearch.throughput.predict.PRIOR_SPREAD", 1e-4)


@pytest.fixture
def table(parse, tmp_path):
    base = parse().base
    table_for([base, base.with_pattern("RMA")]).save(tmp_path / "t.json")
    return Table(path=tmp_path / "t.json")


def asked(answers):
    """A stand-in for measuring that remembers what it was asked."""

    def measure(_, architecture, mode, asks_speed):
        measure.calls.append((architecture.pattern, mode, asks_speed))
        return answers[mode]

    measure.calls = []
    return measure


NEVER = asked({})


def test_a_clear_case_is_predicted_and_says_so(parse, table):
    base = parse().base
    limits = budget(parse, train_tokens_per_second={"at_least": 0.94, "of": "base"})
    found = decide(limits, base.with_pattern("M2AM2A"), {"train": table}, NEVER)
    check = found.checks["train_tokens_per_second"]
    assert (check.verdict, check.source) == ("infeasible", "predicted")
    assert check.value == pytest.approx(7 / 7.8)
    assert check.violation == pytest.approx(1 - 7 / 7.8 / 0.94)
    assert check.reason == "train_tokens_per_second 0.897 of base, budget 0.94, p = 0.999 (predicted)"
    assert found.figures["source"] == "predicted"
    assert found.figures["ratio"] == pytest.approx(7 / 7.8)
    met = decide(limits, base.with_pattern("MRARRA"), {"train": table}, NEVER).checks["train_tokens_per_second"]
    assert (met.verdict, met.source) == ("feasible", "predicted")
    assert met.violation <= 0
    assert NEVER.calls == []


def test_where_the_interval_straddles_the_budget_the_candidate_is_measured(parse, table):
    base = parse().base
    limits = budget(parse, train_tokens_per_second={"at_least": 7 / 7.8, "of": "base"})
    measure = asked({"train": MEASURED})
    found = decide(limits, base.with_pattern("M2AM2A"), {"train": table}, measure)
    assert measure.calls == [("MMAMMA", "train", True)]
    assert found.checks["train_tokens_per_second"].source == "measured"
    assert (found.figures["source"], found.figures["ratio"]) == ("measured", 0.9)


def test_without_a_table_everything_is_measured(parse):
    base = parse().base
    limits = budget(
        parse,
        train_tokens_per_second={"at_least": 0.5, "of": "base"},
        decode_tokens_per_second={"at_least": 50},
        peak_memory={"at_most": 300},
    )
    measure = asked({"train": MEASURED, "decode": MEASURED})
    found = decide(limits, base.with_pattern("MRARRA"), {}, measure)
    assert measure.calls == [("MRARRA", "train", True), ("MRARRA", "decode", True)]
    assert set(found.checks) == {"train_tokens_per_second", "decode_tokens_per_second", "peak_memory"}
    words = found.checks["decode_tokens_per_second"].words
    assert words == "decode_tokens_per_second 90, budget 50, p = 0.99 (measured)"
    assert found.checks["peak_memory"].verdict == "feasible"


@pytest.mark.parametrize("limit", [{"train_tokens_per_second": {"at_least": 50}}, {"peak_memory": {"at_most": 300}}])
def test_what_is_compared_with_nothing_has_no_ratio(parse, limit):
    found = decide(budget(parse, **limit), parse().base.with_pattern("MRARRA"), {}, asked({"train": MEASURED}))
    names = ("ratio", "ratio_low", "ratio_high", "base_tokens_per_second")
    assert [found.figures[name] for name in names] == [None] * 4
    assert found.figures["tokens_per_second"] == 90


def test_bounds_that_are_open_are_none_on_record(parse):
    limits = budget(parse, train_tokens_per_second={"at_least": 0.5, "of": "base"})
    unsure = dataclasses.replace(MEASURED, ratio_low=0.0, ratio_high=math.inf, tokens_per_second_high=math.inf)
    found = decide(limits, parse().base.with_pattern("MRARRA"), {}, asked({"train": unsure})).figures
    assert (found["ratio_low"], found["ratio_high"], found["tokens_per_second_high"]) == (None, None, None)
    assert found["tokens_per_second_low"] == 80


def test_the_speed_of_a_trial_is_that_of_training(parse):
    measured = dataclasses.asdict(MEASURED)
    found = (measured, {**measured, "ratio": None}, {**measured, "mode": "decode"}, None)
    results = [Result(outcome="completed", measurement=measurement) for measurement in found]
    rows = [Row(number=0, given=None, description=None, result=result) for result in results]
    speed = headings(parse()).index("speed")
    assert [cells(parse(), row)[speed] for row in rows] == ["0.90 x", "90 tok/s", "", ""]


def test_memory_is_predicted_too_and_measured_alone_where_only_it_is_open(parse, table):
    base = parse().base
    candidate = base.with_pattern("MRARRA")
    speed = {"at_least": 0.5, "of": "base"}
    limits = budget(parse, train_tokens_per_second=speed, peak_memory={"at_most": "1GiB"})
    clear = decide(limits, candidate, {"train": table}, NEVER)
    assert (clear.checks["peak_memory"].verdict, clear.checks["peak_memory"].source) == ("infeasible", "predicted")
    assert clear.checks["peak_memory"].words == "peak_memory 6.519 GiB, must be at most 1 GiB, p = 0.999 (predicted)"
    measure = asked({"train": MEASURED})
    limits = budget(parse, train_tokens_per_second=speed, peak_memory={"at_most": 7e9})
    close = decide(limits, candidate, {"train": table}, measure)
    assert measure.calls == [("MRARRA", "train", False)]
    assert close.checks["peak_memory"].source == "measured"
    assert close.figures["source"] == "predicted"  # what was timed for its memory was not timed against the base


def test_a_block_that_the_table_lacks_is_measured_and_added(parse, tmp_path, monkeypatch):
    base = parse().base
    path = tmp_path / "t.json"
    table_for([base]).save(path)

    def complete(tabulator, architectures):
        tabulator.table.costs.update(table_for(architectures).costs)
        return True

    monkeypatch.setattr("archsearch.throughput.tabulate.Tabulator.complete", complete)
    limits = budget(parse, train_tokens_per_second={"at_least": 0.94, "of": "base"})
    said = []
    found = decide(limits, base.with_pattern("M2AM2A"), {"train": Table(path=path)}, NEVER, said.append)
    assert found.checks["train_tokens_per_second"].source == "predicted"
    assert said == ["adding to t.json"]


def test_another_cards_table_answers_for_that_card_alone(parse, table):
    base = parse().base
    foreign = dataclasses.replace(table, warning="predicted for another machine, X", foreign_card=True)
    limits = budget(parse, train_tokens_per_second={"at_least": 7 / 7.8, "of": "base"}, peak_memory={"at_most": 7e9})
    found = decide(limits, base.with_pattern("M2AM2A"), {"train": foreign}, NEVER)
    assert found.checks["train_tokens_per_second"].verdict == "undecided"
    assert found.checks["train_tokens_per_second"].violation > 0
    assert found.checks["peak_memory"].verdict == "undecided"
    assert found.figures["warning"] == "predicted for another machine, X"


@pytest.mark.parametrize("speed", [{"at_least": 0.94, "of": "base"}, {"at_least": 50}])
def test_what_another_cards_table_lacks_is_named_and_no_figure_made_up(parse, tmp_path, speed):
    base = parse().base
    table_for([base]).save(tmp_path / "t.json")
    foreign = Table(path=tmp_path / "t.json", warning="predicted for another machine, X", foreign_card=True)
    limits = budget(parse, train_tokens_per_second=speed, peak_memory={"at_most": 7e9})
    found = decide(limits, base.with_pattern("M2AM2A"), {"train": foreign}, NEVER)
    for name in ("train_tokens_per_second", "peak_memory"):
        check = found.checks[name]
        assert (check.verdict, check.value) == ("undecided", None)
        assert check.violation > 0
        assert check.words.startswith(f"{name}: undecided: not in the table: M: m2rnn, 4 heads")
        assert check.words.endswith("; counts as infeasible)")
    assert found.figures is None


def test_the_anchor_itself_needs_no_measuring(parse):
    base = parse().base
    limits = budget(parse, train_tokens_per_second={"at_least": 0.94, "of": "base"})
    found = decide(limits, base, {}, NEVER)
    assert found.checks["train_tokens_per_second"].verdict == "feasible"
    assert found.checks["train_tokens_per_second"].violation <= 0


@pytest.mark.parametrize(
    ("probability", "is_base", "verdict", "violation"),
    [
        (0.99, False, "feasible", 0.0),
        (0.01, False, "infeasible", judge.BARELY),
        (0.6, False, "undecided", 1 - 0.45 / 0.5),
        (0.6, True, "undecided", 0.0),
    ],
)
def test_undecided_is_refused_by_the_lower_bound_and_the_base_let_in(parse, probability, is_base, verdict, violation):
    limits = budget(parse, train_tokens_per_second={"at_least": 0.5, "of": "base"})
    limit = limits.train_tokens_per_second
    check = speed_check("speed", limit, 0.5, (0.45, 0.55), probability, 0.95, "measured", is_base=is_base)
    assert check.verdict == verdict
    assert check.violation == pytest.approx(violation)
    if verdict == "undecided":
        counts = "the base counts as feasible" if is_base else "counts as infeasible"
        assert check.words == f"speed 0.5 of base, budget 0.5: undecided, from 0.45 to 0.55 (measured; {counts})"


def test_the_verdict_counts_not_the_median(parse):
    limit = budget(parse, train_tokens_per_second={"at_least": 0.5, "of": "base"}).train_tokens_per_second
    check = speed_check("speed", limit, 0.49, (0.4, 0.6), 0.99, 0.95, "measured")
    assert (check.verdict, check.violation) == ("feasible", 0.0)


def test_prediction_alone_leaves_open_what_it_cannot_answer(parse, table):
    base = parse().base
    limits = budget(
        parse, train_tokens_per_second={"at_least": 0.94, "of": "base"}, decode_tokens_per_second={"at_least": 50}
    )
    found = predict(limits, base.with_pattern("M2AM2A"), {"train": Predictor(table.load())})
    assert list(found.checks) == ["train_tokens_per_second"]
    assert found.open == ["decode_tokens_per_second"]


def test_a_budget_that_hardly_anything_meets_warns_before_the_search(parse):
    space = parse({"budget": {"train_tokens_per_second": {"at_least": 0.999, "of": "base"}}, "space.count.low": 1})
    everything = [space.base, space.base.with_pattern("RMA")]
    predictors = {"train": Predictor(table_for([*everything, *architectures(space)]))}
    found = look(space, predictors, samples=60)
    assert found.refused == found.legal > 0
    assert f"the budget refuses {found.legal} of {found.legal} legal candidates drawn at random" in found.warning
    assert "train_tokens_per_second" in found.warning
    assert look(parse({"budget.train_tokens_per_second.at_least": 0.3}), predictors, samples=60).warning is None
    assert look(space, {}, samples=60).warning is None
