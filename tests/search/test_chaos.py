"""A short round of studies/chaos/chaos.py: workers and trials killed, disks full, and nothing may be lost by it."""

import importlib.util
import sqlite3
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chaos(monkeypatch):
    """The script, with disks that are full more often; its workers are forked and see that."""
    spec = importlib.util.spec_from_file_location("chaos", ROOT / "studies" / "chaos" / "chaos.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DISK_FULL", {"trial": 0.0, "config": 0.2, "database": 0.01})
    monkeypatch.setattr("archsearch.search.study.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("archsearch.search.retry.RETRY_SECONDS", 0.1)
    return module


@pytest.mark.parametrize("storage", ["SQLite", "PostgreSQL"])
def test_a_study_comes_through_chaos(chaos, storage, tmp_path, request):
    url = request.getfixturevalue("database_url") if storage == "PostgreSQL" else None
    options = {"trials": 5, "workers": 2, "every": 0.7, "kills": 4, "seed": 1, "storage": url, "patience": 100.0}
    one = chaos.Chaos(tmp_path, chaos.SPACE, **options)
    found = one.run()
    assert found["faults"] == [], found
    assert sum(found["killed"].values()) >= 3
    assert found["starts_of_trials"] > sum(found["outcomes"].get(x, 0) for x in ("completed", "failed")) - 1


def test_chaos_would_be_noticed(chaos, tmp_path):
    one = chaos.Chaos(tmp_path, chaos.SPACE, trials=2, workers=1, every=9.0, kills=0, seed=0)
    (tmp_path / "machine" / "chaos").mkdir(parents=True)
    sqlite3.connect(tmp_path / "machine" / "chaos" / "study.db").close()
    faults = list(one.faults([], "Traceback (most recent call last)", late=True))
    assert faults[:1] == ["0 finished trials, not 2"]
    assert faults[1:] == ["a worker ended with a traceback", "the study had no end", "no result"]
