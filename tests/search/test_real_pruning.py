"""Trials that train for real: in a study with a pruner, and killed between two rungs."""

import pytest

from archsearch.config import save_yaml
from archsearch.search.process import read_report, run_trial
from archsearch.search.ranks import Ranks
from archsearch.search.session import Options, run
from archsearch.search.study import trial_config
from archsearch.search.trial import Journal
from archsearch.search.trial import run as train

ONE = [{"task": "s3", "metric": "loss", "length": 16, "direction": "minimize"}]


class Watched(Journal):
    """A journal that the study's worker reads as soon as there is something in it."""

    def __init__(self, folder, watch):
        super().__init__(folder)
        self.watch = watch

    def write(self, **news):
        super().write(**news)
        self.watch(self.report)


def train_here(folder, config, *, watch, **_):
    """Run a trial in this process."""
    save_yaml(folder / "config.yaml", config)
    journal = Watched(folder, watch)
    train(config, folder, journal, 0, Ranks())
    journal.write(phase="done", outcome="completed")
    return read_report(folder)


def test_a_study_ends_real_trials_at_their_rungs(parse, tmp_path, monkeypatch):
    monkeypatch.setattr("archsearch.search.study.run_trial", train_here)
    monkeypatch.setattr("archsearch.search.confirmation.run_trial", train_here)
    small = {"architecture.pattern": "R2A", "space.count.high": 2, "space.placement": ["free"], "space.mixers": {}}
    study = {"study.pruner": "asha", "study.confirm.top": 0, "tasks.s3.tokens": 64 * 9}
    space = parse({"objectives": ONE, "budget": {}, **small, **study})
    evidence = run(space, Options(file="space.yaml", output=tmp_path, trials=4, seed=0)).evidence
    trials = [x for x in evidence["trials"] if x["outcome"] in ("completed", "pruned")]
    at_first = [x["rungs"][0]["values"][0] for x in trials]
    assert len(set(at_first)) == len(trials) == 4
    for i, x in enumerate(trials):  # of fewer than six, it keeps the best so far
        assert (x["rungs"][0]["pruned"] is None) == (i == 0 or at_first[i] <= min(at_first[:i]))
        if x["outcome"] == "pruned":
            assert not x["metrics"]
            assert not list((tmp_path / "tiny/trials" / f"{x['number']:04d}").glob("*/last.ckpt"))
    assert {x["outcome"] for x in trials} == {"completed", "pruned"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_trial_goes_on_between_its_rungs(parse, tmp_path):
    space = parse({"objectives": ONE, "study.pruner": "asha", "tasks.s3.tokens": 64 * 60})
    config = trial_config(space, space.base.with_pattern("A").to_dict(), 0, (), budget=False, rungs=True)
    (tmp_path / "whole").mkdir()
    whole = train_here(tmp_path / "whole", config, watch=lambda _: None)
    assert [rung["step"] for rung in whole["rungs"]] == [6, 18]

    def kill(report):
        if report.get("rungs"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(tmp_path / "killed", config, timeout=60, watch=kill)
    before = read_report(tmp_path / "killed")["rungs"]
    assert before == whole["rungs"][: len(before)] != []
    report = run_trial(tmp_path / "killed", config, timeout=60, watch=lambda _: None)
    assert report["outcome"] == "completed", report["reason"]
    assert report["rungs"] == whole["rungs"]
    for name in ("loss", "loss/16", "accuracy"):
        assert report["metrics"]["s3"][name] == whole["metrics"]["s3"][name]
