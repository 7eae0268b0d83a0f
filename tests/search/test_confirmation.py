"""Workers that share a study share its confirmation runs, whether on one machine or on many."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from archsearch.search import confirmation
from archsearch.search.confirmation import confirm
from archsearch.search.database import parse_database
from archsearch.search.failures import HeldUpError
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study
from tests.search.conftest import answer


class Silent:
    def update(self, rows, running):
        pass

    def say(self, text):
        pass


STORAGES = pytest.mark.parametrize("workers", ["sqlite", "postgresql"], indirect=True)
SQLITE = pytest.mark.parametrize("workers", ["sqlite"], indirect=True)


@pytest.fixture
def workers(request, parse, tmp_path, monkeypatch):
    """Two workers of a study whose search has ended; each trains as the test says."""
    monkeypatch.setattr(confirmation, "WAIT_SECONDS", 0.02)
    space = parse({"study.trials": 3, "study.confirm": {"top": 1, "seeds": 2}})
    database = None
    if request.param == "postgresql":
        database = parse_database(request.getfixturevalue("database_url"))
    with contextlib.ExitStack() as opened:

        def worker(name):
            folder = tmp_path / (name if database else "same")
            (folder / "trials").mkdir(parents=True, exist_ok=True)
            store = Store(folder, space, 0, database)
            opened.callback(store.close)
            return Study(space, store, Limits(trials=3), Silent())

        two = [worker("one"), worker("two")]
        two[0].launch = trains([])
        two[0].run()
        yield two


def trains(done, first=lambda: None):
    """Train at once, noting what."""

    def launch(folder, config, **_):
        first()
        done.append(folder.name)
        return answer(config, "ok")

    return launch


def both(workers):
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda study: confirm(study, lambda *_: None), workers))


RUNS = ["confirm-0000-seed1000", "confirm-0000-seed1001", "confirm-0002-seed1000", "confirm-0002-seed1001"]


@STORAGES
def test_each_run_is_one_workers_and_all_get_all_results(workers):
    meet = threading.Barrier(2)  # no run ends before the other worker has one in hand
    done = [[], []]
    for study, own in zip(workers, done, strict=True):
        study.launch = trains(own, lambda: meet.wait(timeout=30))
    one, two = both(workers)
    assert [len(own) for own in done] == [2, 2]
    assert sorted(done[0] + done[1]) == RUNS
    assert one == two
    assert [(x.row.number, sorted(x.metrics)) for x in one] == [(2, [1000, 1001]), (0, [1000, 1001])]
    assert one[1].metrics[1001]["s3"]["loss"] == pytest.approx(1 - 1001 / 100000)


@SQLITE
def test_what_is_on_record_is_not_trained_again_unless_it_is_another_training(workers):
    done = []
    workers[0].launch = workers[1].launch = trains(done)
    confirm(workers[0], lambda *_: None)
    confirm(workers[1], lambda *_: None)
    assert sorted(done) == RUNS
    workers[1].space.tasks["s3"].optimizer["learning_rate"] = 0.5
    confirm(workers[1], lambda *_: None)
    assert sorted(done) == sorted(RUNS * 2)


@SQLITE
def test_what_timed_out_goes_on_once_it_may_take_longer(workers):
    study, done = workers[0], []
    slow = {"outcome": "failed", "cause": "timeout", "reason": "timed out after 60 s (study.timeout_per_trial)"}
    study.launch = lambda *_, **__: {**slow, "metrics": {}}
    assert [len(x.failures) for x in confirm(study, lambda *_: None)] == [2, 2]
    study.launch = trains(done)
    assert [len(x.failures) for x in confirm(study, lambda *_: None)] == [2, 2]
    longer = replace(study.space.study, timeout_per_trial=2 * study.space.study.timeout_per_trial)
    study.space = replace(study.space, study=longer)
    assert [len(x.metrics) for x in confirm(study, lambda *_: None)] == [2, 2]
    assert sorted(done) == RUNS


@SQLITE
def test_what_another_worker_has_just_ended_is_not_trained_again(workers, monkeypatch):
    one, two = workers
    done, lock_of = [], one.store.locks.confirmation
    one.launch = two.launch = trains(done)

    def late(name):
        if not done:
            confirm(two, lambda *_: None)
        return lock_of(name)

    monkeypatch.setattr(one.store.locks, "confirmation", late)
    confirm(one, lambda *_: None)
    assert sorted(done) == RUNS


@STORAGES
def test_the_run_of_a_worker_that_dies_is_trained_by_another(workers):
    done, began, held = [], threading.Event(), workers[0].store.locks.confirmation(RUNS[2])
    assert held.take(wait=False)
    workers[1].launch = trains(done, began.set)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(confirm, workers[1], lambda *_: None)
        assert began.wait(timeout=30)
        held.release()  # as the end of its process does
        assert [x.row.number for x in found.result(timeout=30)] == [2, 0]
    assert sorted(done) == RUNS


@SQLITE
def test_a_stop_comes_between_runs_and_keeps_what_has_ended(workers):
    done = []
    study = workers[0]
    study.launch = trains(done, lambda: setattr(study, "limits", Limits(trials=3, stop_at=0.0)))
    assert confirm(study, lambda *_: None) is None
    assert len(done) == len(study.store.confirmations()) == 1


@SQLITE
def test_a_broken_gpu_spoils_no_run(workers, monkeypatch):
    monkeypatch.setattr("archsearch.search.retry.RETRY_SECONDS", 0)
    broken, sound = workers
    broken.launch = lambda *_, **__: {"outcome": "failed", "cause": "device", "reason": "uncorrectable ECC error"}
    with pytest.raises(HeldUpError, match="seed1000: uncorrectable ECC error; this worker trusts its GPU no longer"):
        confirm(broken, lambda *_: None)
    sound.launch = trains(done := [])
    assert all(len(found.metrics) == 2 for found in confirm(sound, lambda *_: None))
    assert sorted(done) == RUNS


@SQLITE
def test_a_stop_before_another_try_is_no_error(workers):
    study = workers[0]
    study.limits = Limits(trials=3, stop_at=time.monotonic() + 0.2)

    def is_killed(*_, **__):
        time.sleep(0.3)
        return {"outcome": "failed", "cause": "killed", "reason": "ended by SIGTERM from outside"}

    study.launch = is_killed
    assert confirm(study, lambda *_: None) is None
