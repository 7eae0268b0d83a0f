"""Predictions on tables whose truth is known."""

import math
import random
import time

import pytest

from archsearch.architecture import resolve
from archsearch.throughput.cost_table import Cost, CostTable, Whole, part_of, parts_of, with_vocabulary
from archsearch.throughput.predict import Estimate, MissingPartsError, Predictor, residual_figures

from .test_cost_table import KEY, model

TRUE = {"R": 8e-3, "M": 9e-3, "A": 7e-3}
FIXED = 30e-3


def table_of(letters="RMA", error=0.0, seed=0):
    """A table that knows the true costs, or those with a relative error."""
    drawn = random.Random(seed)

    def cost(label, seconds, size):
        return Cost(label=label, seconds=seconds * (1 + drawn.gauss(0, error)), error=seconds * error, bytes=size)

    table = CostTable(key=KEY, layers=4)
    for letter in letters:
        table.costs[part_of(model(letter), letter)] = cost(letter, TRUE[letter], 2e9)
    fixed = next(iter(parts_of(model("R"))))
    table.costs[fixed] = cost("fixed", FIXED, 10e9)
    return table


def truth(pattern, unseen=0.0):
    return (FIXED + sum(TRUE[letter] for letter in pattern)) * (1 + unseen)


def add_whole(table, pattern, seconds):
    architecture = model(pattern)
    size = 10e9 + 2e9 * len(architecture.pattern)
    table.wholes[architecture.id] = Whole(
        label=pattern, parts=parts_of(architecture), seconds=seconds, error=1e-5 * seconds, bytes=size
    )


def test_the_cost_of_a_pattern_is_the_sum_of_its_parts():
    predictor = Predictor(table_of())
    assert predictor.predict(model("R6MA")).median == pytest.approx(FIXED + 6 * 8e-3 + 9e-3 + 7e-3)
    assert predictor.peak_memory(model("R6MA")).median == pytest.approx(26e9)
    assert predictor.relative(model("RM"), model("R2")).median == pytest.approx(46 / 47)


def test_what_the_parts_do_not_see_is_learnt_from_whole_patterns():
    table = table_of()
    for pattern in ("R7A", "R5M2A", "R3M4A", "R4M2A2"):
        add_whole(table, pattern, truth(resolve(pattern).pattern, unseen=-0.02))
    predicted = Predictor(table).predict(model("R6MA"))
    assert predicted.median == pytest.approx(0.98 * truth("RRRRRRMA"))
    figures = residual_figures(table)
    assert figures["seen_by_no_part"] == pytest.approx(-0.02)
    assert figures["median_error"] < 1e-12
    assert predicted.spread < Predictor(table_of()).predict(model("R6MA")).spread


def test_relative_to_a_base_that_was_measured_what_both_have_in_common_cancels():
    table = table_of()
    for pattern, unseen in (("R7A", -0.03), ("R6MA", -0.03), ("R4M3A", -0.03)):
        add_whole(table, pattern, truth(resolve(pattern).pattern, unseen))
    ratio = Predictor(table).relative(model("R5M2A"), model("R7A"))
    assert ratio.median == pytest.approx(truth("R" * 7 + "A") / truth("RRRRRMMA"))
    assert Predictor(table).relative(model("R7A"), model("R7A")).median == 1.0


def test_nothing_is_faster_or_slower_than_itself():
    predictor = Predictor(table_of(error=0.01))
    itself = predictor.relative(model("R7A"), model("R7A"))
    assert (itself.median, itself.interval(0.95)) == (1.0, (1.0, 1.0))
    assert predictor.relative(model("R7A"), model("AR7")).spread > 0
    with pytest.raises(MissingPartsError):
        Predictor(table_of("R")).relative(model("R7A"), model("R7A"))


def test_what_was_measured_whole_is_what_it_took_and_ratios_are_those_of_the_predictions():
    table = table_of()
    for pattern, unseen in (("R7A", 0.0), ("R6MA", 0.02), ("R4M3A", 0.02)):
        add_whole(table, pattern, truth(resolve(pattern).pattern, unseen))
    predictor = Predictor(table)
    assert predictor.predict(model("R6MA")).median == pytest.approx(1.02 * truth("RRRRRRMA"))
    assert predictor.predict(model("R6MA")).spread == pytest.approx(1e-5)
    for one, other in (("R5M2A", "R7A"), ("R7A", "R5M2A"), ("R6MA", "R7A"), ("R5M2A", "R3M4A")):
        times = [predictor.predict(model(x)).median for x in (one, other)]
        assert predictor.relative(model(one), model(other)).median == pytest.approx(times[1] / times[0])
    assert predictor.relative(model("R6MA"), model("R7A")).spread < 1e-4
    assert predictor.relative(model("R5M2A"), model("R3M4A")).spread > 0.01


def test_intervals_cover_as_often_as_they_say():
    covered = covered_ratio = total = 0
    for seed in range(60):
        drawn = random.Random(seed)
        table = table_of(error=0.004, seed=seed)

        def unseen(drawn=drawn):
            return 0.01 + drawn.gauss(0, 0.008)

        base = truth("R" * 21 + "AAA", unseen())
        add_whole(table, "R21A3", base)
        for _ in range(5):
            count = drawn.randint(0, 6)
            pattern = "M" * count + "R" * (21 - count) + "AAA"
            add_whole(table, pattern, truth(pattern, unseen()))
        pattern = "R" * 17 + "M" * 4 + "AAA"
        seconds, predictor = truth(pattern, unseen()), Predictor(table)
        low, high = predictor.predict(model(pattern)).interval(0.95)
        covered += low <= seconds <= high
        low, high = predictor.relative(model(pattern), model("R21A3")).interval(0.95)
        covered_ratio += low <= base / seconds <= high
        total += 1
    assert covered / total >= 0.9
    assert covered_ratio / total >= 0.9


def test_what_is_not_known_at_all_has_an_interval():
    low, high = Estimate(median=1.0, spread=1e15, freedom=2).interval(0.95)
    assert low < 1e-300 < 1e300 < high


def test_a_verdict_by_prediction_is_as_sure_as_its_interval():
    estimate = Estimate(median=0.9, spread=0.01, freedom=8)
    low, high = estimate.interval(0.9)
    assert estimate.probability_above(low) == pytest.approx(0.95)
    assert estimate.probability_above(high) == pytest.approx(0.05)
    assert estimate.inverse(1.8).median == pytest.approx(2.0)
    assert estimate.inverse().probability_above(1 / high) == pytest.approx(0.95)


def test_what_the_table_lacks_is_named_not_guessed():
    predictor = Predictor(table_of("RA"))
    with pytest.raises(MissingPartsError) as error:
        predictor.predict(model("R6MA"))
    assert error.value.parts == [part_of(model("M"), "M")]
    assert "m2rnn" in str(error.value)


def test_a_table_without_memory_predicts_none():
    table = table_of()
    table.costs = {name: Cost(label="", seconds=x.seconds, error=0.0) for name, x in table.costs.items()}
    assert Predictor(table).peak_memory(model("RM")) is None


def test_ten_thousand_patterns_take_well_under_a_millisecond_each():
    predictor, drawn, base = Predictor(table_of()), random.Random(0), model("R24")
    patterns = {"".join(drawn.choice("RMA") for _ in range(24)) for _ in range(500)}
    architectures = [with_vocabulary(base.with_pattern(pattern)) for pattern in patterns]
    started = time.process_time()
    for _ in range(20):
        for architecture in architectures:
            predictor.predict(architecture).interval(0.95)
    each = (time.process_time() - started) / (20 * len(architectures))
    assert each < 5e-4
    assert math.isfinite(each)
