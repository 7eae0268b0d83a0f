"""Why a trial ended, what the sampler learns from it, and what is run again."""

import errno
import os
import signal

import optuna
import pytest
import sqlalchemy
import torch

from archsearch.search import failures, process, retry
from archsearch.search.failures import HeldUpError, cause_of, count_memory_kills
from archsearch.search.memory import peaks
from archsearch.search.process import run_trial
from archsearch.search.retry import run_to_its_end
from archsearch.search.rows import Result
from archsearch.search.store import Store, constraints_of, read_rows
from archsearch.search.study import Limits, Study
from archsearch.search.trial import Journal, keep_record
from archsearch.training.run import NotFiniteError

CONFIG = {"architecture": {"pattern": "MA"}, "seed": 0, "budget": None}
FULL = OSError(errno.ENOSPC, "No space left on device")
DONE = {"outcome": "completed", "metrics": {"s3": {"accuracy/16": 0.5, "loss": 0.25}}}


def failed(cause, reason="so it was"):
    return {"outcome": "failed", "cause": cause, "reason": reason}


def caused(outer, inner):
    outer.__cause__ = inner
    return outer


def too_large():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    return raised.value


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), "out_of_memory"),
        (too_large(), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "out_of_memory"),
        (NotFiniteError("the loss is nan at step 3"), "not_finite"),
        (FULL, "disk_full"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk_full"),
        (caused(RuntimeError("saving has failed"), FULL), "disk_full"),
        (caused(RuntimeError("a step has failed"), MemoryError()), "out_of_memory"),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "killed"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "crash"),
        (ZeroDivisionError("division by zero"), "crash"),
        (KeyError("metrics"), "crash"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exception_has_a_cause(error, cause):
    assert cause_of(error) == cause


@pytest.mark.parametrize(("kills", "cause"), [(0, "killed"), (1, "out_of_memory")])
def test_a_kill_by_the_kernel_for_want_of_memory_is_the_trials_own_doing(
    tmp_path, fake_trial, monkeypatch, kills, cause
):
    counts = iter([3, 3 + kills])
    monkeypatch.setattr(process, "count_memory_kills", lambda: next(counts))
    fake_trial("kill")
    report = run_trial(tmp_path, CONFIG, timeout=30, watch=lambda _: None)
    assert (report["outcome"], report["cause"]) == ("failed", cause)


def test_the_kernels_count_of_kills_is_read(tmp_path, monkeypatch):
    assert count_memory_kills() >= 0
    counter = tmp_path / "memory.events"
    counter.write_text("oom 4\noom_kill 2\noom_group_kill 1\n")
    monkeypatch.setattr(failures, "_counters", lambda: [(tmp_path / "missing", "oom_kill"), (counter, "oom_kill")])
    assert count_memory_kills() == 2


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("crash", "crash"),
        ("signal", "signal"),
        ("terminate", "killed"),
        ("full", "disk_full"),
        ("oom", "out_of_memory"),
    ],
)
def test_a_process_that_ends_without_a_word_has_a_cause_too(tmp_path, fake_trial, mode, cause):
    fake_trial(mode)
    assert run_trial(tmp_path, CONFIG, timeout=30, watch=lambda _: None)["cause"] == cause


def test_a_trial_says_what_stopped_it_and_how_much_memory_it_took(tmp_path):
    journal = Journal(tmp_path)

    def work(_):
        raise NotFiniteError("the loss is nan at step 3")

    keep_record(journal, work)
    found = process.read_report(tmp_path)
    assert (found["outcome"], found["cause"]) == ("failed", "not_finite")
    assert found["reason"] == "NotFiniteError: the loss is nan at step 3"
    assert 10 * 2**20 < found["memory"]["host"] < 100 * 2**30
    assert peaks({"host": 2**50, "gpu": 3})["host"] == 2**50
    assert peaks({"host": 2**50, "gpu": 3})["gpu"] == 3


def test_progress_can_wait_for_room_but_an_outcome_cannot(tmp_path, monkeypatch):
    def refuse(*_):
        raise FULL

    journal = Journal(tmp_path)
    monkeypatch.setattr("archsearch.search.trial.write_atomic", refuse)
    journal.progress({"step": 1})
    with pytest.raises(OSError, match="No space left"):
        keep_record(journal, lambda _: None)


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Run a trial that ends in these ways one after the other."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)

    def ends(*reports, **options):
        coming = iter(reports)

        def run():
            report = next(coming)
            if isinstance(report, Exception):
                raise report
            return report

        return run_to_its_end(run, tmp_path, retries=2, **options)

    return ends


def test_what_was_not_its_fault_is_run_again_so_often_and_no_more(ends):
    noted = []
    report = ends(failed("killed"), failed("device"), DONE, note=lambda found: noted.append(list(found)))
    assert report["outcome"] == "completed"
    assert [found["cause"] for found in report["interruptions"]] == ["killed", "device"]
    assert [len(found) for found in noted] == [1, 2]
    assert ends(*[failed("killed")] * 3)["outcome"] == "failed"
    known = [{"cause": "lost", "reason": "x"}] * 2
    assert len(ends(failed("killed"), interruptions=known)["interruptions"]) == 3


@pytest.mark.parametrize("cause", ["out_of_memory", "not_finite", "timeout", "crash", "signal"])
def test_what_was_its_own_doing_is_not_run_again(ends, cause):
    assert ends(failed(cause))["interruptions"] == []


def test_a_full_disk_is_waited_for_and_is_never_the_trials_failure(ends, monkeypatch):
    rooms = iter([False, False, True, True])
    monkeypatch.setattr(retry, "_has_room", lambda _: next(rooms))
    said = []
    report = ends(failed("disk_full"), FULL, DONE, say=said.append)
    assert report["outcome"] == "completed"
    assert [found["cause"] for found in report["interruptions"]] == ["disk_full"] * 2
    assert said[0].startswith("waiting for room on the disk of")
    monkeypatch.setattr(retry, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(retry, "_has_room", lambda _: False)
    with pytest.raises(HeldUpError, match=r"stays full .*; everything is kept, the same command goes on"):
        ends(failed("disk_full"))


def test_samplers_learn_what_a_shape_cannot_do_and_nothing_else():
    for cause in ("out_of_memory", "not_finite", "timeout"):
        assert constraints_of(Result(outcome="failed", cause=cause)) == {"legal": 0.0, "trained": 1.0}
    for cause in ("crash", "signal", "killed", "disk_full", None):
        assert constraints_of(Result(outcome="failed", cause=cause)) == {"legal": 0.0}


class Quiet:
    def __init__(self):
        self.said = []

    def update(self, rows, running):
        pass

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def study(parse, tmp_path, monkeypatch):
    """A study of which the trials end in these ways, `ok` from then on."""
    (tmp_path / "trials").mkdir()
    stores = []

    def study(*reports, trials=3):
        coming = iter(reports)

        def run_trial(*_, **__):
            report = next(coming, DONE)
            if isinstance(report, BaseException):
                raise report
            return report

        monkeypatch.setattr("archsearch.search.study.run_trial", run_trial)
        for name in ("study", "retry"):
            monkeypatch.setattr(f"archsearch.search.{name}.RETRY_SECONDS", 0.0)
        stores.append(Store(tmp_path, parse({"budget": {}}), 0))
        return Study(stores[-1].space, stores[-1], Limits(trials=trials), Quiet())

    yield study
    for store in stores:
        store.close()


def test_a_study_keeps_cause_and_interruptions_and_prunes_what_is_infeasible(study, tmp_path):
    study(failed("out_of_memory"), failed("killed"), DONE, failed("crash")).run()
    rows = read_rows(tmp_path, "tiny")
    assert [row.result.cause for row in rows] == ["out_of_memory", None, "crash"]
    assert rows[1].outcome == "completed"
    assert [found["cause"] for found in rows[1].result.interruptions] == ["killed"]
    trials = optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/study.db").trials
    assert [trial.state.name for trial in trials] == ["PRUNED", "COMPLETE", "FAIL"]
    assert trials[0].constraints == {"legal": 0.0, "trained": 1.0}


def test_a_worker_that_stops_in_order_leaves_no_interruption_and_one_that_is_lost_does(study, tmp_path):
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            study(KeyboardInterrupt(), trials=1).run()
    one = study(trials=1)
    with one.store.lock:
        hold = one.store.adopt()
    assert hold.interruptions == []
    for lost in range(1, 4):
        one.store.note_run(hold, hold.interruptions)
        hold.lock.release()  # as the end of the process does
        with one.store.lock:
            hold = one.store.adopt()
        assert [found["cause"] for found in hold.interruptions] == ["lost"] * lost
    hold.lock.release()
    one.run()
    row = read_rows(tmp_path, "tiny")[0]
    assert (row.outcome, row.result.cause, len(row.result.interruptions)) == ("failed", "lost", 3)
    assert row.result.reason == "its worker was killed, or the worker's machine is gone"


def test_a_worker_whose_gpu_fails_stops_before_it_spoils_the_study(study, tmp_path):
    with pytest.raises(HeldUpError, match="trusts its GPU no longer"):
        study(*[failed("device", "CUDA error: unknown error")] * 9).run()
    assert [row.outcome for row in read_rows(tmp_path, "tiny")] == ["failed", "waiting", "waiting"]


def test_a_full_disk_under_the_database_is_waited_for(study, tmp_path):
    one = study(trials=3)
    limits = [(tmp_path / "study.db").stat().st_size // 4096, 10**6]

    def limit(connection, *_):
        connection.execute(f"pragma max_page_count = {limits[0]}")

    def say(text):
        one.view.said.append(text)
        del limits[0]

    one.view.say = say
    sqlalchemy.event.listen(one.store._storage.engine, "checkout", limit)
    assert one.run() == "3 distinct candidates have been tried"
    assert one.view.said == [f"waiting for room on the disk of {tmp_path}: database or disk is full"]
    assert [row.outcome for row in read_rows(tmp_path, "tiny")] == ["completed"] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_search_in_order(number):
    previous = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    with pytest.raises(KeyboardInterrupt), process.in_order():
        signal.raise_signal(number)
    assert signal.signal(number, previous) == signal.SIG_DFL


def test_a_search_under_nohup_outlives_its_terminal():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with process.in_order():
        signal.raise_signal(signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, previous) == signal.SIG_IGN


def test_a_trial_that_has_ended_leaves_no_checkpoint(study, tmp_path):
    (tmp_path / "trials" / "0000" / "s3").mkdir(parents=True)
    (tmp_path / "trials" / "0000" / "s3" / "last.ckpt").touch()
    study(failed("timeout"), trials=1).run()
    assert read_rows(tmp_path, "tiny")[0].result.cause == "timeout"
    assert not list(tmp_path.rglob("last.ckpt"))
