"""Whole studies; the trials answer by a formula (conftest.py)."""

import json
import warnings
from pathlib import Path

import optuna
import pytest

from archsearch.config import ConfigError, load_yaml, save_yaml
from archsearch.search.folder import read_evidence
from archsearch.search.session import Options, run
from archsearch.search.status import read_status
from archsearch.search.store import Store, read_rows

pytestmark = pytest.mark.usefixtures("instant_trial")


@pytest.fixture
def search(tmp_path, parse):
    """Run a study of the space with some keys changed."""

    def search(changes=(), **options):
        space = parse(changes)
        defaults = {"file": "space.yaml", "output": tmp_path, "trials": space.study.trials, "seed": 0}
        return run(space, Options(**{**defaults, **options}))

    return search


def rows_of(folder):
    return read_rows(folder, "tiny")


def test_a_study_finds_the_best_candidate(search, tmp_path):
    conclusion = search()
    evidence = conclusion.evidence
    best = evidence["trials"][evidence["winner"]]
    assert conclusion.message == "8 distinct candidates have been tried"
    assert best["outcome"] == "completed"
    assert best["values"][0] == max(x["values"][0] for x in evidence["trials"] if x["outcome"] == "completed")
    folder = tmp_path / "tiny"
    assert load_yaml(folder / "best" / "architecture.yaml")["pattern"] == best["pattern"]
    assert load_yaml(folder / "best" / "fit.yaml")["data"]["class_path"] == "archsearch.data.StateTracking"
    assert evidence["versions"]["optuna"] == optuna.__version__


def test_it_begins_with_what_is_given(search, tmp_path):
    search()
    rows = rows_of(tmp_path / "tiny")
    assert [row.given for row in rows[:4]] == ["base", "first", "before_attention", None]
    assert [row.description.pattern for row in rows[:3]] == ["R2AR2A", "MRAR2A", "RMARMA"]
    assert rows[1].description.parameters_change == pytest.approx(-10 / 11672)


def test_what_is_refused_or_illegal_is_never_run(search, tmp_path):
    search({"study.trials": 14, "study.confirm.top": 0})
    rows = rows_of(tmp_path / "tiny")
    ran = {row.number for row in rows if (tmp_path / "tiny" / "trials" / f"{row.number:04d}" / "config.yaml").exists()}
    outcomes = {row.outcome for row in rows}
    assert ran == {row.number for row in rows if row.outcome == "completed"}
    assert {"illegal", "refused", "completed"} <= outcomes
    refused = next(row for row in rows if row.outcome == "refused")
    assert refused.result.reason.startswith("parameters ")


def test_repeats_are_not_candidates_and_share_what_is_known(search, tmp_path):
    search(
        {
            "study.sampler": "tpe",
            "study.trials": 10,
            "space.placement": ["first", "before_attention"],
            "study.confirm.top": 0,
        }
    )
    rows = rows_of(tmp_path / "tiny")
    repeats = [row for row in rows if row.outcome == "duplicate"]
    distinct = [row.description.key for row in rows if row.outcome not in ("duplicate", "waiting")]
    assert len(distinct) == len(set(distinct))
    trials = optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db").trials
    assert repeats
    for row in repeats:
        original = rows[row.result.duplicate_of]
        assert row.description.key == original.description.key
        assert trials[row.number].values == trials[original.number].values
        assert trials[row.number].constraints == trials[original.number].constraints


def test_every_trial_that_counts_has_its_constraints(search, tmp_path):
    search({"study.trials": 14, "study.confirm.top": 0})
    study = optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db")
    for trial, row in zip(study.trials, rows_of(tmp_path / "tiny"), strict=True):
        if row.outcome == "completed":
            assert trial.state.name == "COMPLETE"
            assert all(value <= 0 for value in trial.constraints.values())
            assert set(trial.constraints) == {"legal", "parameters"}
        if row.outcome in ("illegal", "refused"):
            assert trial.state.name == "PRUNED"
            assert max(trial.constraints.values()) > 0


def test_an_exhausted_space_ends_the_study(search):
    changes = {"space.placement": ["first"], "space.mixers": {}, "space.count.high": 2, "study.trials": 50}
    conclusion = search(changes)
    assert (
        conclusion.message == "every candidate of the space has been seen (4)"
    )  # the fourth is before attention, as given
    again = search(changes)
    assert again.message.startswith("finished before")


def test_a_finished_study_goes_on_where_the_space_has_changed(search):
    small = {"space.placement": ["first"], "space.mixers": {}, "space.count.high": 1, "study.confirm.seeds": 1}
    assert search(small, trials=9).message == "every candidate of the space has been seen (3)"
    larger = search({"space.count.high": 2, "study.confirm.seeds": 2}, trials=9, accept_changes=True)
    assert larger.message == "every candidate of the space has been seen (4)"
    assert len(larger.evidence["confirmed"][0]["metrics"]) == 2
    assert search(trials=9).message.startswith("finished before")


def test_a_space_too_large_for_brute_force_leaves_nothing_behind(search, tmp_path):
    with pytest.raises(ConfigError, match="brute_force takes spaces of at most 4000 ways"):
        search({"study.sampler": "brute_force", "space.mixers.M.key_head_dim": {"low": 1, "high": 2000}})
    assert not (tmp_path / "tiny").exists()


def test_what_the_measured_budget_refuses_does_not_win(search, instant_trial):
    instant_trial("refuse")
    conclusion = search({"budget.train_tokens_per_second": {"at_least": 0.3, "of": "base"}})
    evidence = conclusion.evidence
    assert evidence["trials"][evidence["winner"]]["given"] == "base"
    assert evidence["trials"][1]["reason"] == "peak_memory 3, must be at most 2"


def test_a_budget_that_nothing_can_meet_names_the_nearest(search, tmp_path):
    conclusion = search({"budget.parameters": {"at_most": 10}})
    assert conclusion.evidence["winner"] is None
    refused = [x for x in conclusion.evidence["trials"] if x["outcome"] == "refused"]
    nearest = conclusion.evidence["trials"][conclusion.evidence["nearest"]]
    assert nearest["parameters"] == min(x["parameters"] for x in refused)
    assert not (tmp_path / "tiny" / "best").exists()


def test_a_crash_is_on_record_and_the_study_goes_on(search, instant_trial):
    instant_trial("crash")
    evidence = search().evidence
    assert evidence["counts"]["failed"] >= 2
    assert evidence["trials"][1]["reason"] == "exit status 1: it broke"
    assert evidence["trials"][evidence["winner"]]["given"] == "base"


def test_the_best_are_trained_again_with_fresh_seeds_beside_the_base(search):
    best, base = search().evidence["confirmed"]
    assert (best["is_base"], base["is_base"]) == (False, True)
    values = best["objectives"][0]["values"]
    assert list(values) == ["1000", "1001", "1002"]
    difference = best["objectives"][0]["difference_to_base"]
    assert difference["seeds"] == 3
    assert difference["mean"] > 0
    assert not difference["is_tie"]


def test_a_metric_that_the_task_does_not_report_is_a_failure(search):
    evidence = search({"objectives.1.metric": "perplexity"}).evidence
    assert evidence["trials"][0]["reason"] == "s3 reports no perplexity, only accuracy, accuracy/16, loss"


def test_a_stop_keeps_everything_and_the_same_command_goes_on(search):
    stopped = search(stop_after=0.0)
    assert stopped.evidence is None
    assert "the same command goes on" in stopped.message
    first = search(trials=4)
    assert first.evidence["counts"]["completed"] >= 3
    more = search(trials=6)
    assert more.message == "6 distinct candidates have been tried"
    assert more.evidence["trials"][:3] == first.evidence["trials"][:3]


def test_a_timeout_draws_the_result_from_what_there_is(search):
    conclusion = search(timeout=0.0)
    assert conclusion.message.startswith("the time limit has come")


def test_the_same_seed_finds_the_same_candidates_in_one_run_or_in_two(search, tmp_path):
    tpe = {"study.sampler": "tpe"}
    search(tpe, trials=7)
    once = [row.description.key for row in rows_of(tmp_path / "tiny")][:7]
    search(tpe, fresh=True, trials=4)
    search(tpe, trials=7)
    assert [row.description.key for row in rows_of(tmp_path / "tiny")][:7] == once
    assert len(list(tmp_path.glob("tiny.*"))) == 1


def test_a_changed_space_is_refused_with_what_has_changed(search):
    search()
    with pytest.raises(ConfigError) as error:
        search({"space.count.high": 2})
    assert "space.count.high: 3 -> 2" in str(error.value)
    assert "--fresh" in str(error.value)


def test_what_is_still_to_be_tried_may_change_and_stays_on_record(search, tmp_path):
    search(trials=5)
    changed = {"space.count.high": 2, "space.placement": ["spread", "last"], "study.sampler": "pattern"}
    with pytest.raises(ConfigError, match=r"space\.placement: .*; --accept-changes goes on"):
        search(changed, trials=7)
    evidence = search(changed, trials=7, accept_changes=True).evidence
    (found,) = evidence["changes"]
    assert found["from_trial"] == len([x for x in evidence["trials"] if x["number"] < found["from_trial"]])
    assert (found["old"]["space"]["count"]["high"], found["new"]["space"]["count"]["high"]) == (3, 2)
    assert "space.count.high: 3 -> 2" in found["changed"]
    late = [x for x in evidence["trials"] if x["number"] >= found["from_trial"]]
    assert late
    assert all(x["count"] <= 2 and x["placement"] in ("none", "all", "spread", "last") for x in late)
    trials = optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db").trials
    names = {name for trial in trials for name in trial.params if name.startswith("placement")}
    assert names == {"placement", "placement@2"}
    assert load_yaml(tmp_path / "tiny" / "space.yaml")["space"]["count"]["high"] == 2
    assert search(changed, trials=7).message.startswith("finished before")  # no flag: it is the study's space now


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("tasks.s3.tokens", 1280, "tasks"),
        ("objectives.0.direction", "minimize", "objectives"),
        ("architecture.hidden_size", 32, "architecture"),
        ("budget.parameters", {"at_most": 2.0, "of": "base"}, "budget"),
    ],
)
def test_what_results_were_found_with_may_not_change(search, key, value, named):
    search(stop_after=0.0)
    with pytest.raises(ConfigError, match=f"what is on record was found with the {named} of then; --fresh"):
        search({key: value}, accept_changes=True)


def test_how_long_a_speed_is_measured_may_change(search):
    search(stop_after=0.0)
    assert search({"budget.time_limit": 33}, accept_changes=True).evidence["changes"]


def test_the_rungs_of_asha_may_not_change(search, parse):
    asha = {"study.pruner": "asha", "objectives": parse().written["objectives"][:1]}
    search(asha, stop_after=0.0)
    with pytest.raises(ConfigError, match=r"study\.reduction: .* -> 2.*found with the study\.reduction of then; --fr"):
        search({**asha, "study.reduction": 2}, accept_changes=True)


def test_another_seed_is_refused_or_accepted_and_on_record(search):
    search(stop_after=0.0)
    with pytest.raises(ConfigError, match=r"the seed has changed since this study began \(seed: 0 -> 1\); --accept-ch"):
        search(seed=1)
    evidence = search(seed=1, trials=4, accept_changes=True).evidence
    assert (evidence["seed"], evidence["changes"][0]["changed"]) == (1, ["seed: 0 -> 1"])


def test_a_study_of_an_older_release_has_its_space_in_the_folder_alone(search, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "_accept_space", lambda *_: None)
    search(stop_after=0.0)
    monkeypatch.undo()
    assert "space" not in optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db").user_attrs
    with pytest.raises(ConfigError, match=r"space\.count\.high: 3 -> 2"):
        search({"space.count.high": 2})


def test_a_folder_that_cannot_be_written_is_one_line(search, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/tiny: cannot be written: Not a directory"):
        search(output=tmp_path / "file")


def test_a_recorded_study_without_its_database_is_not_overwritten(search, tmp_path):
    search()
    for damage in (Path.unlink, Path.touch):
        damage(tmp_path / "tiny" / "study.db")
        with pytest.raises(ConfigError, match="a recorded study without its database"):
            search()


def test_a_worker_adopts_what_a_dead_one_left_and_leaves_alone_what_a_live_one_runs(parse, tmp_path):
    space = parse()
    (tmp_path / "trials").mkdir()
    stores = [Store(tmp_path, space, 0), Store(tmp_path, space, 0)]
    with stores[0].lock:
        hold = stores[0].ask()
        stores[0].decide(hold)
    with stores[1].lock:
        assert stores[1].adopt() is None
        hold.lock.release()  # as the end of the process does
        adopted = stores[1].adopt()
    assert adopted.number == hold.number == 0
    assert stores[1].decide(adopted)[0].key == space.base.id
    adopted.lock.release()
    for store in stores:
        store.close()


def test_status_tells_running_from_abandoned(parse, tmp_path):
    space = parse()
    (tmp_path / "trials").mkdir()
    save_yaml(tmp_path / "space.yaml", space.written)
    store = Store(tmp_path, space, 0)
    with store.lock:
        first, second = store.ask(), store.ask()
    second.lock.release()
    status = read_status(tmp_path)
    assert (list(status.alive), status.abandoned) == ([0], [1])
    assert status.counts == {"running": 2, "waiting": 1}
    assert json.loads(json.dumps(status.to_dict()))["abandoned"] == [1]
    first.lock.release()
    store.close()


def test_optuna_does_not_warn(search):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search({"study.sampler": "tpe"}, trials=5)


def test_the_evidence_is_the_record(search, tmp_path):
    conclusion = search()
    assert read_evidence(tmp_path / "tiny") == json.loads(json.dumps(conclusion.evidence))
