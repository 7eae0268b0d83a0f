"""Studies with a pruner; the trials climb their rungs in this very process, by a formula."""

import json

import optuna
import pytest

from archsearch.cli import main
from archsearch.config import save_yaml
from archsearch.search.process import read_report
from archsearch.search.pruners import Pruning
from archsearch.search.rungs import Place, Rung, places
from archsearch.search.session import Options, run
from archsearch.search.store import Store, read_rows
from archsearch.search.trial import Journal

ONE = [{"task": "s3", "metric": "accuracy", "length": 16, "direction": "maximize"}]
FREE = {
    "space.placement": ["free"],
    "space.mixers": {"M": {"key_head_dim": [4, 8]}},
    "budget": {},
    "study.trials": 9,
    "study.confirm.top": 1,
    "study.confirm.seeds": 1,
}
OF_ONE = {**FREE, "objectives": ONE}


class KilledError(Exception):
    """The worker has been killed."""


def merit(architecture):
    """More M, M in front, and larger keys are better."""
    pattern = architecture["pattern"]
    places = sum(1 / (i + 2) for i, letter in enumerate(pattern) if letter == "M")
    return places / 2 + architecture["mixers"].get("M", {"key_head_dim": 0})["key_head_dim"] / 1000


@pytest.fixture(autouse=True)
def climb(monkeypatch):
    """Let trials climb: `ran` are the folders of those that ran, `seen` the rungs that they evaluated.

    `after` is called at each rung; the study's worker sees none before the end where it does not `watch`.
    """

    class Climb:
        def __init__(self):
            self.ran, self.seen, self.after, self.watches = [], [], lambda *_: None, True

        def __call__(self, folder, config, *, watch, **_):
            save_yaml(folder / "config.yaml", config)
            journal = Journal(folder)
            self.ran.append(folder.name)
            for name, task in config["tasks"].items():
                journal.write(phase=f"train {name}")
                for step in task.get("rungs", {"steps": []})["steps"]:
                    if step not in [x["step"] for x in journal.report["rungs"] if x["task"] == name]:
                        value = merit(config["architecture"]) * step / 10
                        metrics = {"accuracy/16": value, "loss": 1 - value}
                        wanted = {key: metrics[key] for key in task["rungs"]["metrics"]}
                        journal.report["rungs"].append({"task": name, "step": step, "metrics": wanted})
                        journal.write(progress={"step": step, "total_steps": 10, "loss": 1.0})
                        self.seen.append((folder.name, name, step))
                    self.after(int(folder.name[-4:]) if folder.name.isdigit() else None, step)
                    if self.watches:
                        watch(read_report(folder))
                value = merit(config["architecture"])
                journal.report["metrics"][name] = {"accuracy/16": value, "loss": 1 - value, "tokens": 640.0}
            journal.write(phase="done", outcome="completed", seconds={"s3": 0.1})
            return read_report(folder)

    climb = Climb()
    monkeypatch.setattr("archsearch.search.study.run_trial", climb)
    monkeypatch.setattr("archsearch.search.confirmation.run_trial", climb)
    return climb


@pytest.fixture
def search(tmp_path, parse):
    def search(changes, **options):
        space = parse(changes)
        defaults = {"file": "space.yaml", "output": tmp_path, "trials": space.study.trials, "seed": 0}
        return run(space, Options(**{**defaults, **options})).evidence

    return search


def trials_of(tmp_path):
    return optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db").trials


def test_rungs_lie_a_factor_of_tokens_apart(parse):
    found = places(parse({**OF_ONE, "study.pruner": "asha", "tasks.s3.tokens": 64 * 100}))
    assert found == [
        Place(task="s3", number=1, step=11, tokens=704),
        Place(task="s3", number=2, step=33, tokens=2112),
    ]
    assert places(parse({"study.pruner": "none"})) == []


def test_tokens_rise_through_the_tasks(parse, values):
    tasks = dict.fromkeys(("first", "idle", "s3"), values["tasks"]["s3"])
    aims = [{"task": name, "metric": "loss", "direction": "minimize"} for name in ("s3", "first")]
    found = places(parse({"tasks": tasks, "objectives": aims, "study.pruner": "pareto"}))
    assert [(place.task, place.step, place.tokens) for place in found] == [
        ("first", 1, 64),
        ("first", 3, 192),
        ("s3", 1, 704),
        ("s3", 3, 832),
    ]


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_a_pruner_ends_the_worse_and_keeps_the_best(search, tmp_path, pruner):
    evidence = search({**OF_ONE, "study.pruner": pruner})
    pruned = [x for x in evidence["trials"] if x["outcome"] == "pruned"]
    completed = [x for x in evidence["trials"] if x["outcome"] == "completed"]
    assert evidence["counts"]["pruned"] == len(pruned) >= 1
    best = max(merit_of(x) for x in evidence["trials"] if x["outcome"] in ("completed", "pruned"))
    assert max(merit_of(x) for x in completed) == best
    assert sum(map(merit_of, completed)) / len(completed) > sum(map(merit_of, pruned)) / len(pruned)
    assert evidence["trials"][0]["outcome"] == "completed"  # the base, the worst of all
    assert pruned[0]["reason"].startswith("rung 1 of 2 (64 tokens): s3 accuracy @16 0.0")
    assert " others: median 0.0" in pruned[0]["reason"]
    if pruner == "median":
        assert {x["outcome"] for x in evidence["trials"] if x["number"] < pruned[0]["number"]} <= {
            "completed",
            "duplicate",
        }
        assert pruned[0]["number"] >= 3
        assert pruned[0]["reason"].endswith("; worse than the median of those that were trained to the end")
    assert {x["trial"] for x in evidence["confirmed"]} <= {x["number"] for x in completed}
    for trial, x in zip(trials_of(tmp_path), evidence["trials"], strict=True):
        if x["outcome"] == "pruned":
            last = x["rungs"][-1]
            assert (trial.state.name, trial.last_step) == ("PRUNED", last["tokens"])
            assert trial.values == [trial.intermediate_values[trial.last_step]] == last["values"]
            assert max(trial.constraints.values()) <= 0
            assert x["reason"] == last["pruned"]
            assert x["trained_tokens"] == last["tokens"] < 640
            assert not list((tmp_path / "tiny/trials" / f"{x['number']:04d}").glob("*/last.ckpt"))


def merit_of(trial):
    return merit(trial["architecture"])


def test_several_objectives_are_pruned_where_half_dominate(search, tmp_path, values):
    tasks = dict.fromkeys(("s3", "s5"), values["tasks"]["s3"])
    aims = [{"task": name, "metric": "loss", "direction": "minimize"} for name in ("s5", "s3")]
    evidence = search({**FREE, "tasks": tasks, "objectives": aims, "study.pruner": "pareto", "study.trials": 11})
    came = []  # to the first rung, in order
    for x in (x for x in evidence["trials"] if x.get("rungs")):
        loss = x["rungs"][0]["values"][1]
        better = sum(other < loss for other in came)
        expected = x["given"] != "base" and len(came) >= 3 and 2 * better >= len(came)
        assert bool(x["rungs"][0]["pruned"]) == expected
        if expected:
            assert x["reason"].startswith("rung 1 of 2 of s3 (64 tokens): s3 loss 0.9")
            assert x["reason"].endswith(f"; dominated by {better} of the {len(came)} others")
        came.append(loss)
    assert evidence["counts"]["pruned"] >= 1
    assert all(not trial.intermediate_values for trial in trials_of(tmp_path))
    whole = next(x for x in evidence["trials"] if x["outcome"] == "completed")
    assert [(x["task"], x["tokens"]) for x in whole["rungs"]] == [("s3", 64), ("s3", 192), ("s5", 704), ("s5", 832)]
    assert whole["rungs"][0]["values"][0] is None
    assert whole["rungs"][2]["values"] == [pytest.approx(1 - merit_of(whole) / 10), whole["values"][1]]
    assert {x["task"]: x["label"] for x in evidence["pruning"]["rungs"]} == {"s3": "s3 loss", "s5": "s5 loss"}


@pytest.mark.parametrize(("here", "pruned"), [([0.5, 2.0], True), ([0.5, 0.5], False), ([0.9, 2.0], False)])
def test_one_that_is_best_in_anything_goes_on(parse, here, pruned):
    pruning = Pruning(parse({"study.pruner": "pareto"}))
    rungs = [
        Rung(task="s3", number=1, tokens=64, values=x) for x in (here, [0.6, 1.0], [0.7, 1.5], [0.8, 3.0], [0.1, 9.0])
    ]
    assert bool(pruning.judge(None, None, rungs[0], rungs[1:])) == pruned
    assert pruning.judge(None, None, rungs[0], rungs[1:3]) is None  # fewer than study.startup


def test_the_base_is_never_pruned_and_others_are_only_while_they_run(parse, tmp_path):
    (tmp_path / "trials").mkdir()
    store = Store(tmp_path, parse({**OF_ONE, "study.pruner": "asha"}), 0)
    base, better, worse, late = (store.ask() for _ in range(4))
    rung = {"task": "s3", "number": 1, "tokens": 64}
    assert store.reach(better, Rung(**rung, values=[0.5]), may_prune=True) is None
    assert store.reach(base, Rung(**rung, values=[0.1]), may_prune=True) is None
    assert store.reach(worse, Rung(**rung, values=[0.2]), may_prune=True).startswith("rung 1 of 2")
    assert store.reach(worse, Rung(**rung, values=[0.2]), may_prune=True).startswith("rung 1 of 2")  # as on record
    assert store.reach(late, Rung(**rung, values=[0.2]), may_prune=False) is None
    assert [len(row.rungs) for row in store.rows()] == [1, 1, 1, 1]
    for hold in (base, better, worse, late):
        hold.release()
    store.close()


def test_what_was_pruned_is_not_tried_again(search, tmp_path):
    small = {"space.placement": ["first", "spread"], "space.mixers": {}, "study.sampler": "tpe", "study.trials": 9}
    evidence = search({**OF_ONE, **small, "study.pruner": "asha"})
    pruned = {x["number"] for x in evidence["trials"] if x["outcome"] == "pruned"}
    repeats = [x for x in evidence["trials"] if x["duplicate_of"] in pruned]
    assert repeats
    trials = trials_of(tmp_path)
    for x in repeats:
        original = trials[x["duplicate_of"]]
        assert trials[x["number"]].intermediate_values == original.intermediate_values
        assert (trials[x["number"]].state, trials[x["number"]].values) == (original.state, original.values)


def test_the_pattern_sampler_proposes_nothing_that_was_pruned(search):
    evidence = search({**OF_ONE, "study.sampler": "pattern", "study.pruner": "hyperband", "study.trials": 9})
    assert evidence["counts"]["pruned"] >= 1
    keys = [x["key"] for x in evidence["trials"]]
    assert len(keys) == len(set(keys))


def test_a_trial_is_complete_when_it_ends_before_the_pruner_has_looked(search, climb, tmp_path):
    climb.watches = False
    evidence = search({**OF_ONE, "study.pruner": "asha"})
    assert "pruned" not in evidence["counts"]
    for trial, x in zip(trials_of(tmp_path), evidence["trials"], strict=True):
        if x["outcome"] == "completed":
            assert list(trial.intermediate_values) == [64, 192]
            assert "completed_rung_0" in trial.system_attrs
            assert [rung["pruned"] for rung in x["rungs"]] == [None, None]


def without_measures(trial):
    return {key: value for key, value in trial.items() if key not in ("seconds", "memory")}


def test_a_killed_study_ends_as_if_nothing_had_happened(search, climb):
    changes = {**OF_ONE, "study.pruner": "asha"}
    whole = search(changes)
    climb.seen.clear()
    killed = set()

    def kill(number, step):
        if number in (1, 3, 5) and (number, step) not in killed:
            killed.add((number, step))
            raise KilledError

    climb.after, ended, options = kill, None, {"fresh": True}
    while ended is None:
        try:
            ended = search(changes, **options)
        except KilledError:
            options = {}
    assert len(killed) >= 4
    assert [without_measures(x) for x in ended["trials"]] == [without_measures(x) for x in whole["trials"]]
    assert len(climb.seen) == len(set(climb.seen))  # no rung is evaluated twice
    assert all(folder.isdigit() for folder, _, _ in climb.seen)  # none when the best are trained again


def test_a_verdict_that_a_killed_worker_left_is_carried_out_without_training(search, climb, tmp_path, monkeypatch):
    tell = Store.tell

    def die(store, hold, result):
        if result.outcome == "pruned":
            raise KilledError
        tell(store, hold, result)

    monkeypatch.setattr(Store, "tell", die)
    changes = {**OF_ONE, "study.pruner": "asha"}
    with pytest.raises(KilledError):
        search(changes)
    monkeypatch.setattr(Store, "tell", tell)
    left = next(row for row in read_rows(tmp_path / "tiny", "tiny") if row.outcome == "running")
    climb.ran.clear()
    evidence = search(changes)
    assert evidence["trials"][left.number]["outcome"] == "pruned"
    assert evidence["trials"][left.number]["reason"] == left.rungs[-1].pruned
    assert f"{left.number:04d}" not in climb.ran


def test_what_the_rungs_were_worth_is_in_the_result(values, tmp_path, capsys):
    values |= {"budget": {}, "objectives": ONE}
    values["space"] |= {"placement": ["free"], "mixers": {}}
    values["study"] |= {"pruner": "median", "trials": 11, "confirm": {"top": 0}}
    save_yaml(tmp_path / "space.yaml", values)
    assert main(["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    pruning = json.loads((tmp_path / "tiny/evidence.json").read_text())["pruning"]
    trained = pruning["of"]
    assert pruning["tokens"]["without"] == 640 * trained
    assert f"median: {pruning['pruned']} of {trained} trained candidates pruned, {pruning['tokens']['saved']:,}" in out
    assert "rung 2 of s3 (192 tokens), s3 accuracy @16: Kendall's tau with the end 1.00 (95% interval 0." in out
    assert "confirmation runs of 640 tokens (s3 640)" in out
    assert "cost none, pruned ones a part" in out
    assert main(["status", str(tmp_path / "tiny")]) == 0
    assert f"{pruning['pruned']} pruned" in (status := capsys.readouterr().out)
    assert "Kendall's tau with the end 1.00" in status
    assert main(["status", str(tmp_path / "tiny"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pruning"] == pruning
