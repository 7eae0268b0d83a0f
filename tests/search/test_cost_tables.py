"""Tables of a space: what belongs in one, which one a study takes, and what it does with it."""

import dataclasses
import json
import threading

import pytest

from archsearch.config import ConfigError, Where
from archsearch.files import locked
from archsearch.search.candidates import RandomSuggest, sample
from archsearch.search.cost_tables import FOLDER, architectures, default_path, prepare, random_patterns
from archsearch.search.dry_run import survey
from archsearch.search.session import Options, run
from archsearch.search.space import parse_space
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.cost_table import Cost, CostTable, load_table, parts_of, with_vocabulary
from archsearch.throughput.machine import key_of_this_machine
from tests.search.varied import varied

SECONDS = {"gated_deltanet": 1.0, "m2rnn": 1.4, "attention": 0.5, "embedding": 2.0}
BUDGET = {"train_tokens_per_second": {"at_least": 0.92, "of": "base"}, "sequence_length": 8, "batch_size": 1}


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    monkeypatch.setattr("archsearch.throughput.predict.PRIOR_SPREAD", 1e-3)


@pytest.fixture
def space(parse):
    return parse({"budget": BUDGET, "study.confirm.top": 0})


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "space.yaml")


def table_of(space, **changes):
    key = dataclasses.replace(key_of_this_machine(Conditions(batch_size=1, length=8)), **changes)
    found = CostTable(key=key, layers=1)
    for architecture in map(with_vocabulary, architectures(space)):
        for part in parts_of(architecture):
            seconds = next(value for name, value in SECONDS.items() if part.startswith(name))
            found.costs[part] = Cost(label=part, seconds=seconds, error=1e-4)
    return found


def put_beside(space, file, **changes):
    table = table_of(space, **changes)
    path = default_path(file, table.key)
    table.save(path)
    return path


def test_every_block_that_a_candidate_can_have_belongs_in_the_table(space):
    parts = {part for x in architectures(space) for part in parts_of(with_vocabulary(x))}
    heads = {json.loads(part.split(" ", 1)[1])["num_heads"] for part in parts if part.startswith("m2rnn")}
    assert (
        sum(part.startswith("m2rnn") for part in parts) == 2
    )  # of four shapes as many are legal, the written one among them
    assert len(heads) >= 2
    everything = [x for pattern in random_patterns(space, 12, seed=3) for x in parts_of(with_vocabulary(pattern))]
    assert set(everything) <= parts


def test_the_blocks_of_every_letter_backbone_and_base_pattern_belong_in_the_table():
    space = varied(patterns=["R2AR2A", "RUR"], forbid=[{"M.count": 1}])
    known = {part for x in architectures(space) for part in parts_of(with_vocabulary(x))}
    assert {part.split(" ", 1)[0] for part in known} == {
        "embedding",
        "gated_deltanet",
        "mamba2",
        "attention",
        "gru",
        "m2rnn",
        "rnn",
    }
    suggest = RandomSuggest(0)
    drawn = [x for _ in range(300) if (x := sample(space, suggest)).illegal is None]
    assert {part for x in drawn for part in parts_of(with_vocabulary(x.architecture))} <= known
    patterns = random_patterns(space, 12, seed=3)
    assert {part for x in patterns for part in parts_of(with_vocabulary(x))} <= known
    assert {letter for x in patterns for letter in x.pattern} == set("RSAUMN")


def test_random_patterns_differ_and_a_third_asks_for_heads_that_no_table_has(space):
    parts = {part for x in architectures(space) for part in parts_of(with_vocabulary(x))}
    patterns = random_patterns(space, 9, seed=1, new_shapes=1 / 3)
    assert len({x.id for x in patterns}) == 9
    assert sum(not set(parts_of(with_vocabulary(x))) <= parts for x in patterns) == 3
    assert [x.id for x in patterns] == [x.id for x in random_patterns(space, 9, seed=1, new_shapes=1 / 3)]
    assert {x.pattern.count("M") for x in patterns} > {1}


def test_the_table_beside_the_space_is_taken_and_copied_into_the_study(space, file, tmp_path):
    path = put_beside(space, file)
    assert path.parent.name == FOLDER
    tables, news = prepare(space, file, tmp_path, [])
    assert tables["train"].path == tmp_path / "cost_table.train.json"
    assert tables["train"].warning is None
    assert load_table(tables["train"].path).costs == load_table(path).costs
    assert news == [f"train: costs from {path}, 5 parts, 0 whole patterns"]


def test_what_a_study_has_added_to_its_copy_stays(space, file, tmp_path):
    put_beside(space, file)
    (table,) = prepare(space, file, tmp_path, [])[0].values()
    grown = load_table(table.path)
    grown.costs["more"] = Cost(label="more", seconds=1.0, error=0.0)
    grown.save(table.path)
    prepare(space, file, tmp_path, [])
    assert "more" in load_table(table.path).costs


def test_a_table_of_another_machine_beside_the_space_is_not_used_and_says_why(space, file, tmp_path):
    put_beside(space, file, torch="1.0")
    tables, news = prepare(space, file, tmp_path, [])
    assert tables == {}
    assert "not used: " in news[0]
    assert "torch 1.0, not" in news[0]


def test_one_that_is_named_is_used_and_says_whose_it_is(space, file, tmp_path):
    path = put_beside(space, file, card="NVIDIA H200")
    tables, news = prepare(space, file, tmp_path, [str(path)])
    assert tables["train"].foreign_card
    assert news[1].startswith("warning: predicted for another machine, NVIDIA H200")
    named = parse_space({**space.written, "budget": {**BUDGET, "table": f"{FOLDER}/{path.name}"}}, Where(file))
    assert prepare(named, file, tmp_path, [])[0] == tables


def test_one_that_is_named_and_of_no_use_is_refused(space, file, tmp_path):
    path = put_beside(space, file, mode="decode")
    with pytest.raises(ConfigError, match=f"^--table: must be of what the budget needs, train; {path} is of decode$"):
        prepare(space, file, tmp_path, [str(path)])
    named = parse_space({**space.written, "budget": {**BUDGET, "table": "nowhere.json"}}, Where(file))
    with pytest.raises(ConfigError, match=f"^{file}: budget.table: .*nowhere.json: no such file"):
        prepare(named, file, tmp_path, [])
    free = parse_space({**space.written, "budget": {}}, Where(file))
    with pytest.raises(ConfigError, match="no measured speed or memory"):
        prepare(free, file, tmp_path, [str(path)])


def test_one_of_other_conditions_is_refused_where_it_is_named_and_passed_over_where_not(space, file, tmp_path):
    path = put_beside(space, file, length=16)
    assert prepare(space, file, tmp_path, []) == ({}, [])
    with pytest.raises(ConfigError, match="is a table of other conditions \\(length 16, not 8\\)"):
        prepare(space, file, tmp_path, [str(path)])


@pytest.mark.usefixtures("instant_trial")
def test_a_study_refuses_by_prediction_without_starting_a_trial(space, file, tmp_path, capsys):
    put_beside(space, file)
    evidence = run(space, Options(file=file, output=tmp_path, trials=4, seed=0)).evidence
    refused = [x for x in evidence["trials"] if x["outcome"] == "refused"]
    assert refused
    for trial in refused:
        assert trial["measurement"]["source"] == "predicted"
        assert "(predicted)" in trial["reason"]
        assert trial["checks"][0]["violation"] > 0
        assert not (tmp_path / "tiny" / "trials" / f"{trial['number']:04d}" / "config.yaml").exists()
    shown = capsys.readouterr().out
    assert "train: costs from" in shown
    assert "~0.90 x" in shown


@pytest.mark.usefixtures("instant_trial")
def test_a_budget_that_refuses_nearly_everything_warns_at_the_start(values, file, tmp_path, capsys):
    values["budget"] = {**BUDGET, "train_tokens_per_second": {"at_least": 0.999, "of": "base"}}
    values["space"]["count"]["low"] = 1
    space = parse_space(values, Where(file))
    put_beside(space, file)
    run(space, Options(file=file, output=tmp_path, trials=1, seed=0))
    assert "warning: the budget refuses" in capsys.readouterr().out


@pytest.mark.usefixtures("instant_trial")
def test_another_machines_figures_say_so_wherever_they_stand(space, file, tmp_path, capsys):
    from archsearch.search.summary import print_result

    path = put_beside(space, file, card="NVIDIA H200")
    conclusion = run(space, Options(file=file, output=tmp_path, trials=4, seed=0, tables=(str(path),)))
    refused = next(x for x in conclusion.evidence["trials"] if x["outcome"] == "refused")
    assert "(predicted for another machine, NVIDIA H200)" in refused["reason"]
    capsys.readouterr()
    print_result(space, conclusion.folder, conclusion.evidence, conclusion.message)
    assert "warning: predicted for another machine, NVIDIA H200" in capsys.readouterr().out


def test_a_dry_run_predicts_from_the_table_beside_the_space_and_leaves_it_alone(space, file, tmp_path):
    path = put_beside(space, file)
    before = path.read_bytes()
    budget = survey(space, seed=0, samples=100, file=file)["budget"]
    assert budget["tables"] == [f"train: costs from {path}, 5 parts, 0 whole patterns"]
    limit = budget["limits"]["train_tokens_per_second"]
    assert "(predicted)" in limit["example"]
    assert 0 < limit["refused"] == budget["refused"] < budget["legal"]
    assert budget["open"] == {}
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == [FOLDER]


def test_a_dry_run_says_why_a_table_is_not_used(space, file):
    path = put_beside(space, file, torch="1.0")
    budget = survey(space, seed=0, samples=20, file=file)["budget"]
    assert budget["tables"][0].startswith(f"not used: {path}: is a table of another machine")
    assert budget["open"]["train_tokens_per_second"]["reason"] == "no cost table for these conditions on this machine"
    named = survey(space, seed=0, samples=20, file=file, tables=[str(path)])["budget"]
    assert named["refused"] > 0


def test_what_a_worker_adds_while_the_table_is_copied_stays(space, file, tmp_path, monkeypatch):
    put_beside(space, file)
    (table,) = prepare(space, file, tmp_path, [])[0].values()

    def add():
        with locked(table.path):
            grown = load_table(table.path)
            grown.costs["more"] = Cost(label="more", seconds=1.0, error=0.0)
            grown.save(table.path)

    adding = threading.Thread(target=add)

    def slow_load(path):
        loaded = load_table(path)
        if path == table.path:
            adding.start()
            adding.join(0.3)  # either it waits for its turn, or it has written by now
        return loaded

    monkeypatch.setattr("archsearch.search.cost_tables.load_table", slow_load)
    prepare(space, file, tmp_path, [])
    adding.join()
    assert "more" in load_table(table.path).costs
