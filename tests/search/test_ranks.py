"""Trials that train on two devices: two processes that talk through gloo, one trial on record."""

import json
import os
import queue
import time
from pathlib import Path

import pytest
from torch import distributed

from archsearch.config import ConfigError
from archsearch.search.process import read_report, run_trial
from archsearch.search.ranks import Ranks
from archsearch.search.session import Options, run
from archsearch.search.store import read_rows
from archsearch.search.study import trial_config
from archsearch.training.run import train_and_evaluate

needs_gloo = pytest.mark.skipif(not (distributed.is_available() and distributed.is_gloo_available()), reason="no gloo")


@pytest.mark.slow
@needs_gloo
@pytest.mark.timeout(240)
def test_two_ranks_are_one_trial_of_one_architecture(parse, tmp_path):
    space = parse({"study.devices": 2, "study.confirm.top": 0})
    run(space, Options(file="space.yaml", output=tmp_path, trials=1, seed=0))
    (row, *others) = read_rows(tmp_path / "tiny", "tiny")
    assert (row.outcome, {other.outcome for other in others}) == ("completed", {"waiting"})
    trial = tmp_path / "tiny" / "trials" / "0000"
    zero, one = read_report(trial), read_report(trial / "rank-1")
    assert zero["model"] == one["model"] == space.base.id
    assert not list(trial.rglob("*.ckpt"))

    task = space.tasks["s3"]
    alone = train_and_evaluate(
        space.base,
        task.data,
        task.arguments,
        optimizer=task.optimizer,
        max_tokens=task.tokens,
        eval_lengths=task.evaluate,
    )
    for name in ("tokens", "loss", "loss/16", "accuracy/16"):
        assert row.result.metrics["s3"][name] == pytest.approx(alone[name], rel=1e-4)
        assert one["metrics"]["s3"][name] == row.result.metrics["s3"][name]


def ignore(_):
    pass


@pytest.fixture
def run_two(parse, tmp_path, monkeypatch):
    """Run a trial of two ranks, of which rank 1 does something else first."""

    def run_two(does, watch=ignore):
        (tmp_path / "rank_one.py").write_text(f"import os, sys, time\nif sys.argv[-1] == '1':\n    {does}\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        space = parse({"study.devices": 2})
        config = trial_config(space, space.base.to_dict(), 0, ["rank_one"])
        return run_trial(tmp_path / "trial", config, timeout=90, watch=watch)

    return run_two


@needs_gloo
def test_a_rank_that_dies_ends_the_trial_with_its_reason(run_two, tmp_path):
    report = run_two("os.kill(os.getpid(), 9)")
    log = tmp_path / "trial" / "rank-1" / "log.txt"
    assert report["outcome"] == "failed"
    assert (report["cause"], report["reason"]) == ("killed", f"ended by SIGKILL from outside; see {log} (rank 1)")


def test_what_a_rank_reports_before_it_ends_is_the_reason(tmp_path, monkeypatch):
    said = {"outcome": "failed", "cause": "out_of_memory", "reason": "MemoryError: no room"}
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(said)}' > {tmp_path}/rank-1/metrics.json\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr("archsearch.search.ranks.sys.executable", str(script))
    for name in ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    ranks, failures = Ranks(), queue.SimpleQueue()
    ranks.start(tmp_path, 2, failures.put)
    ranks._processes[1].stdin.close()
    assert failures.get(timeout=20) == ranks.failure() == ("out_of_memory", "MemoryError: no room (rank 1)")


@needs_gloo
def test_all_ranks_end_with_the_trial(run_two, tmp_path):
    pid = tmp_path / "pid"

    def interrupt(_):
        if pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_two(f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(80)", interrupt)
    process = Path("/proc", pid.read_text(), "stat")
    deadline = time.monotonic() + 10
    while process.exists() and ") Z " not in process.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not process.exists() or ") Z " in process.read_text()


def test_a_trial_is_no_rank_of_what_started_the_search(monkeypatch, tmp_path):
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    code = "import json, os; print(sorted(os.environ)); raise SystemExit(3)"
    monkeypatch.setattr("archsearch.search.process.COMMAND", ("python3", "-c", code))
    report = run_trial(tmp_path, {}, timeout=30, watch=ignore)
    assert "'PATH'" in report["reason"]
    assert "RANK" not in report["reason"]
    assert "SLURM" not in report["reason"]


def test_devices_share_the_rows_of_a_batch_evenly(parse):
    assert parse({"study.devices": 4}).study.devices == 4
    message = r"^space\.yaml: tasks\.s3\.batch_size: must be a multiple of study\.devices \(3\), .*; got 8$"
    with pytest.raises(ConfigError, match=message):
        parse({"study.devices": 3})
    with pytest.raises(ConfigError, match=r"study\.strategy: unknown strategy 'fsdp' \(did you mean 'fsdp2'\?\)"):
        parse({"study.strategy": "fsdp"})
