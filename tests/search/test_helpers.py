"""Workers that are threads of one process, as those of a Ray cluster are."""

import threading
import time

import pytest

from archsearch.search.helpers import helped
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study
from tests.search.conftest import answer


class Said(list):
    def update(self, rows, running):
        pass

    def say(self, text):
        self.append(text)


@pytest.fixture
def study(parse, tmp_path):
    (tmp_path / "trials").mkdir()
    store = Store(tmp_path, parse(), 0)
    yield Study(store.space, store, Limits(trials=3), Said())
    store.close()


def test_they_run_trials_side_by_side_and_none_twice(study):
    meet = threading.Barrier(3)

    def launch(folder, config, **_):
        (folder / "ran").touch(exist_ok=False)
        meet.wait(timeout=60)
        return answer(config, "ok")

    study.launch = launch
    with helped(study, 2, Study.run):
        study.run()
    assert [row.outcome for row in study.store.rows()] == ["completed"] * 3
    assert study.view == []


def test_an_exception_ends_their_trials_too_and_leaves_them_to_others(study):
    began = threading.Event()

    def launch(*_, watch, **__):
        began.set()
        while True:
            watch({})
            time.sleep(0.01)

    study.launch = launch

    def interrupt():
        with helped(study, 1, Study.run):
            assert began.wait(timeout=60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with study.store.lock:
        hold = study.store.adopt()
    assert hold.number == 0
    hold.lock.release()


def test_the_end_of_one_is_told_and_the_others_go_on(study):
    def take_part(_):
        raise ConnectionError("the cluster is gone")

    study.launch = lambda _, config, **__: answer(config, "ok")
    with helped(study, 1, take_part):
        study.run()
    assert study.view == ["a further worker has ended: ConnectionError: the cluster is gone"]
    assert [row.outcome for row in study.store.rows()] == ["completed"] * 3
