"""A large study: one more trial and its status stay quick. studies/thousand_trials measures 1,000 trials."""

import importlib.util
import time
from pathlib import Path

import pytest

from archsearch.search.rows import Result
from archsearch.search.store import Store

SCRIPTS = Path(__file__).parents[2] / "studies" / "thousand_trials"
TRIALS = 60


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("ask_and_tell", SCRIPTS / "ask_and_tell.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_more_trial_reads_those_before_it_once(script, tmp_path, monkeypatch):
    space, read = script.large(), []
    script.write(space, tmp_path, TRIALS, None)
    store = Store(tmp_path, space, 0)
    monkeypatch.setattr(
        "archsearch.search.store.to_row",
        lambda trial, real=store._row.__globals__["to_row"]: read.append(1) or real(trial),
    )
    assert len(store.rows()) == TRIALS + 3
    read.clear()
    began = time.process_time()
    with store.lock:
        hold = store.ask()
        store.decide(hold)
        store.tell(hold, Result(outcome="completed", metrics=script.answer(0.5)["metrics"]))
    assert time.process_time() - began < 1.0
    assert [row.outcome for row in store.rows()].count("completed") == TRIALS + 1
    assert len(read) < 10
    store.close()
