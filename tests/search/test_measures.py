"""Objectives that no training answers: by formula, predicted, or measured where nothing else asks for it."""

import json
from dataclasses import asdict

import pytest

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.search import judge
from archsearch.search.budget import from_plain, to_plain
from archsearch.search.judge import Table, decide
from archsearch.search.measures import exact_figures, objective_figure
from archsearch.search.session import Options, run
from archsearch.search.trial import Journal, _check_budget
from tests.search.conftest import answer
from tests.search.test_judge import MEASURED, asked, precise, table_for  # noqa: F401  (precise is a fixture)

ACCURACY = {"task": "s3", "metric": "accuracy", "length": 16}
TRAIN, DECODE = {"measure": "train_tokens_per_second"}, {"measure": "decode_tokens_per_second"}


def space_of(parse, *measures, **budget):
    return parse({"objectives": [ACCURACY, *measures], "budget": budget})


def test_a_direction_may_be_left_out(parse):
    names = ["train_tokens_per_second", "decode_tokens_per_second", "peak_memory", "parameters", "state_bytes"]
    space = space_of(parse, {"task": "s3", "metric": "loss"}, *({"measure": name} for name in names))
    found = [objective.direction for objective in space.objectives]
    assert found == ["maximize", "minimize", "maximize", "maximize", "minimize", "minimize", "minimize"]
    (_, turned) = space_of(parse, {"measure": "parameters", "direction": "maximize"}).objectives
    assert turned.direction == "maximize"


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ({"measure": "peak_memry"}, r"objectives\[1\]\.measure: unknown measure 'peak_memry' \(did you mean 'peak_mem"),
        ({**TRAIN, "task": "s3"}, r"objectives\[1\]\.task: has no place beside a measure; got 's3'"),
        ({**TRAIN, "length": 8}, r"objectives\[1\]\.length: is of state_bytes only, .* got 8"),
        (
            {"measure": "parameters", "of": "base"},
            r"objectives\[1\]\.of: is of train_tokens_per_second and decode_.* got",
        ),
        ({**TRAIN, "of": "R4"}, r"objectives\[1\]\.of: must be base, which .* in turns with; got 'R4'"),
        ({**ACCURACY, "of": "base"}, r"objectives\[1\]\.of: makes a measured speed a fraction; .* got 'base'"),
        ({"metric": "loss"}, r"objectives\[1\]\.task: is required, unless there is a measure"),
        ({"direction": "maximize"}, r"objectives\[1\]\.task: is required, unless there is a measure"),
        ({**TRAIN, "direction": "up"}, r"objectives\[1\]\.direction: Invalid value 'up'"),
    ],
)
def test_a_measure_that_cannot_be_taken_is_refused(parse, measure, message):
    with pytest.raises(ConfigError, match=message):
        space_of(parse, measure)


def test_the_winner_is_named_by_a_task(parse):
    with pytest.raises(ConfigError, match=r"objectives\[0\]: must be a metric of a task: .* got the measure 'param"):
        parse({"objectives": [{"measure": "parameters"}, ACCURACY]})


def test_a_fraction_is_of_what_the_budget_measures_in_turns_with(parse):
    limit = {"at_least": 0.5, "of": "R4"}
    space = space_of(parse, {**TRAIN, "of": "R4"}, train_tokens_per_second=limit)
    assert space.budget.anchor("train").pattern == "RRRR"
    assert space.objectives[1].label == "train_tokens_per_second of R4"
    with pytest.raises(ConfigError, match=r"objectives\[1\]\.of: must be R4, .* got 'base'"):
        space_of(parse, {**TRAIN, "of": "base"}, train_tokens_per_second=limit)


def test_what_formulas_answer_is_not_measured(parse):
    space = space_of(parse, {"measure": "parameters"}, {"measure": "state_bytes", "length": "4k"}, precision="bf16")
    assert not space.budget.measured
    base = space.base
    found = exact_figures(space.objectives, base.to_dict(), "bf16")
    assert found["parameters"]["value"] == base.num_parameters()
    assert found["state_bytes/4000"]["value"] == base.cache_bytes(4000, "bfloat16")


def test_a_trial_measures_what_no_limit_asks_for(parse):
    space = space_of(parse, TRAIN, DECODE, {"measure": "peak_memory"})
    assert space.budget.modes == ("train", "decode")
    measure = asked({"train": MEASURED, "decode": MEASURED})
    found = decide(space.budget, space.base.with_pattern("MRARRA"), {}, measure)
    assert measure.calls == [("MRARRA", "train", True), ("MRARRA", "decode", True)]
    assert found.checks == {}
    assert found.figures["source"] == "measured"
    speed = found.wanted["train_tokens_per_second"]
    assert (speed.value, speed.low, speed.high, speed.ratio, speed.source) == (90.0, 80.0, 100.0, 0.9, "measured")
    assert found.wanted["peak_memory"].value == 200


def test_one_measurement_serves_the_limit_and_the_objective(parse):
    limit = {"at_least": 0.5, "of": "base"}
    space = space_of(parse, {**TRAIN, "of": "base"}, {"measure": "peak_memory"}, train_tokens_per_second=limit)
    measure = asked({"train": MEASURED})
    found = decide(space.budget, space.base.with_pattern("MRARRA"), {}, measure)
    assert measure.calls == [("MRARRA", "train", True)]
    figures = {name: asdict(figure) for name, figure in found.wanted.items()}
    assert objective_figure(figures, space.objectives[1]) == (0.9, 0.8, 1.0)
    assert objective_figure(figures, space.objectives[2]) == (200.0, 200.0, 200.0)


def test_what_the_budget_refuses_is_not_measured_for_an_objective(parse):
    space = space_of(parse, DECODE, train_tokens_per_second={"at_least": 0.95, "of": "base"})
    slow = {**vars(MEASURED), "probability": 0.01}
    measure = asked({"train": type(MEASURED)(**slow)})
    found = decide(space.budget, space.base.with_pattern("MRARRA"), {}, measure)
    assert measure.calls == [("MRARRA", "train", True)]
    assert found.wanted == {}


def test_a_table_predicts_instead_and_says_so(parse, tmp_path):
    space = space_of(parse, TRAIN, {"measure": "peak_memory"}, batch_size=2, sequence_length=8)
    base = space.base
    table_for([base, base.with_pattern("RMA")]).save(tmp_path / "t.json")
    never = asked({})
    found = decide(space.budget, base.with_pattern("M2AM2A"), {"train": Table(path=tmp_path / "t.json")}, never)
    speed = found.wanted["train_tokens_per_second"]
    assert speed.source == "predicted"
    assert speed.ratio == pytest.approx(7 / 7.8)
    assert speed.low < speed.value < speed.high
    assert found.wanted["peak_memory"].value == pytest.approx(7e9)
    assert never.calls == []


def test_another_cards_table_that_does_not_tell_ends_the_trial_before_it_trains(parse, tmp_path):
    space = space_of(parse, TRAIN)
    table_for([space.base]).save(tmp_path / "t.json")
    foreign = Table(path=tmp_path / "t.json", warning="predicted for another machine, X", foreign_card=True)
    with pytest.raises(LookupError, match="not in another card's cost table"):
        decide(space.budget, space.base.with_pattern("M2AM2A"), {"train": foreign}, asked({}))


def test_memory_is_of_a_gpu(parse, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    space = space_of(parse, {"measure": "peak_memory"})
    with pytest.raises(ConfigError, match="objectives: peak_memory: is measured on a GPU"):
        run(space, Options(file="space.yaml", output=tmp_path, trials=2, seed=0))


@pytest.mark.parametrize(
    ("limit", "against", "target"),
    [
        (None, "RRARRA", None),
        ({"at_least": 0.5, "of": "R4"}, "RRRR", (0.5, False, True)),
        ({"at_least": 1000}, "RRARRA", (1000, True, True)),
    ],
)
def test_a_wanted_speed_is_measured_in_turns_until_it_is_known(parse, monkeypatch, limit, against, target):
    def compare(candidate, base, _, *, target=None):
        return candidate.pattern, base.pattern, target and (target.at_least, target.absolute, target.narrow)

    monkeypatch.setattr("archsearch.throughput.measure.compare", compare)
    space = space_of(parse, TRAIN, **({"train_tokens_per_second": limit} if limit else {}))
    plain = json.loads(json.dumps(to_plain(space.budget)))
    read = from_plain(plain, Where("config.yaml"))
    assert (read.wanted, read.origin) == (space.budget.wanted, space.base.to_dict())
    assert judge.measure_whole(read, space.base.with_pattern("MA"), "train", True) == ("MA", against, target)


def test_a_trial_puts_its_figures_on_record_once(parse, monkeypatch, tmp_path):
    measure = asked({"train": MEASURED})
    monkeypatch.setattr(judge, "measure_whole", measure)
    space = space_of(parse, TRAIN)
    for _ in range(2):  # the second time it is resumed
        _check_budget(space.base, to_plain(space.budget), {}, Journal(tmp_path), Where("config.yaml"))
    assert len(measure.calls) == 1
    assert Journal(tmp_path).report["figures"]["train_tokens_per_second"]["value"] == 90.0


def test_a_study_ranks_by_what_was_measured_and_by_formulas(parse, monkeypatch, tmp_path):
    def run_trial(_, config, **__):
        pattern = config["architecture"]["pattern"]
        figures = {}
        if config["budget"]:
            assert config["budget"]["wanted"] == ["train_tokens_per_second"]
            speed = 1000.0 - 10 * pattern.count("M")
            figure = {"value": speed, "low": speed - 1, "high": speed + 1, "ratio": speed / 1000, "ratio_low": 0.9}
            figures = {"train_tokens_per_second": {**figure, "ratio_high": 1.1, "source": "measured"}}
        return {**answer(config, "ok"), "figures": figures}

    monkeypatch.setattr("archsearch.search.study.run_trial", run_trial)
    monkeypatch.setattr("archsearch.search.confirmation.run_trial", run_trial)
    space = parse({"objectives": [ACCURACY, TRAIN, {"measure": "parameters"}], "study.confirm": {"top": 2, "seeds": 2}})
    evidence = run(space, Options(file="space.yaml", output=tmp_path, trials=6, seed=0)).evidence
    done = [trial for trial in evidence["trials"] if trial["outcome"] == "completed"]
    for trial in done:
        model = Architecture.from_dict(trial["architecture"], Where("x"))
        assert trial["values"][1:] == [1000.0 - 10 * model.pattern.count("M"), model.num_parameters()]
    assert len(done) >= 3
    first = evidence["confirmed"][0]["objectives"]
    assert first[1]["values"] == {}
    assert first[1]["estimate"]["seeds"] == 0
    assert first[1]["difference_to_base"]["low"] < first[1]["difference_to_base"]["mean"] < 0
    exact = first[2]["difference_to_base"]
    assert exact["low"] == exact["mean"] == exact["high"]


def test_a_trial_without_its_figure_has_failed(parse, instant_trial, tmp_path):
    instant_trial()
    evidence = run(space_of(parse, TRAIN), Options(file="space.yaml", output=tmp_path, trials=2, seed=0)).evidence
    assert evidence["trials"][0]["outcome"] == "failed"
    assert evidence["trials"][0]["reason"] == "the measurement reports no train_tokens_per_second, only "
