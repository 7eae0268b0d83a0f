"""Files that are cut short, a database of others: one line that names what is wrong, and nothing waits for ever."""

import contextlib
import errno
import json
import shutil
import sqlite3
import time
from functools import partial

import optuna
import pytest

from archsearch.config import ConfigError, Where, save_yaml
from archsearch.search import session
from archsearch.search.session import Options, run
from archsearch.search.space import parse_space
from archsearch.search.status import read_status
from archsearch.search.store import Store, read_rows
from archsearch.search.trial import main as run_trial

pytestmark = pytest.mark.usefixtures("instant_trial")


@pytest.fixture
def search(tmp_path, parse):
    """Go on with a study that stopped before its first trial."""
    space = parse()

    def search(**options):
        return run(space, Options(**{"file": "space.yaml", "output": tmp_path, "trials": 3, "seed": 0, **options}))

    search(stop_after=0.0)
    return search


def change(folder, query):
    connection = sqlite3.connect(folder / "study.db")
    connection.execute(query)
    connection.commit()
    connection.close()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


NEWER = """insert into trial_user_attributes (trial_id, key, value_json) values (1, 'candidate', '{"novelty": 1}')"""

LATER = "update alembic_version set version_num = 'v9.0.0'"

DAMAGES = {
    r"tiny/study\.db: database disk image is malformed$": lambda folder: cut(folder / "study.db"),
    r"tiny/study\.db: file is not a database$": lambda folder: (folder / "study.db").write_text("text" * 999),
    r"tiny/study\.db: The runtime optuna": lambda folder: change(folder, LATER),
    r"tiny/evidence\.json: is not valid JSON: .* writes it anew$": lambda folder: (folder / "evidence.json").touch(),
    r"tiny/storage\.yaml: must be postgresql://": lambda folder: (folder / "storage.yaml").touch(),
    r"trial 0 was put on record by another release of archsearch: .*novelty": lambda folder: change(folder, NEWER),
}


def test_what_cannot_be_read_is_one_line(search, tmp_path):
    for number, (message, damage) in enumerate(DAMAGES.items()):
        folder = tmp_path / str(number) / "tiny"
        shutil.copytree(tmp_path / "tiny", folder)
        damage(folder)
        for look in (partial(search, output=folder.parent), partial(read_status, folder)):
            with pytest.raises((ConfigError, OSError), match=message):
                look()


def test_a_trial_that_another_program_has_ended_has_failed(search, tmp_path):
    study = optuna.load_study(study_name="tiny", storage=f"sqlite:///{tmp_path}/tiny/study.db")
    study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    assert search().message == "3 distinct candidates have been tried"  # it does not wait for that one
    first = read_rows(tmp_path / "tiny", "tiny")[0]
    assert (first.outcome, first.result.cause) == ("failed", "killed")
    assert first.result.reason == "another program has ended it in the database"


def test_fresh_leaves_a_folder_alone_where_a_search_is_at_work(search, tmp_path, parse):
    store = Store(tmp_path / "tiny", parse(), 0)
    with store.lock:
        hold = store.ask()
    with pytest.raises(ConfigError, match=r"--fresh: a search is at work in .*tiny; end that first"):
        search(fresh=True)
    hold.lock.release()
    search(fresh=True)
    assert len(list(tmp_path.glob("tiny.*"))) == 1
    store.close()


def test_status_needs_no_right_to_write(tmp_path, parse, monkeypatch):
    (tmp_path / "trials").mkdir()
    save_yaml(tmp_path / "space.yaml", parse().written)
    with contextlib.closing(Store(tmp_path, parse(), 0)) as store:
        with store.lock:
            held, left = store.ask(), store.ask()
        left.lock.release()

        def read_only(*_):
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr("archsearch.search.locks.os.open", read_only)
        status = read_status(tmp_path)
        assert (list(status.alive), status.abandoned) == ([held.number], [left.number])
        held.lock.release()


def test_a_trial_that_could_not_be_adopted_is_adopted_at_the_next_try(tmp_path, parse, monkeypatch):
    (tmp_path / "trials").mkdir()
    store = Store(tmp_path, parse(), 0)

    def locked(_):
        raise OSError("database is locked")

    with store.lock:
        store.ask().lock.release()
    with monkeypatch.context() as broken:
        broken.setattr(store._storage, "get_trial", locked)
        with pytest.raises(OSError, match="locked"):
            store.adopt()
    hold = store.adopt()
    assert hold.number == 0
    hold.lock.release()
    store.close()


def test_a_checkpoint_that_is_cut_short_costs_no_trial(values, tmp_path):
    task = {"data": "StateTracking", "arguments": {"length": 6, "batch_size": 4, "eval_size": 8}, "evaluate": [6]}
    options = {"optimizer": {}, "schedule": {}, "precision": "32-true", "tokens": 48}
    architecture = parse_space(values, Where("space.yaml")).base.to_dict()
    rest = {"budget": None, "seed": 0, "devices": 1, "strategy": "ddp", "plugins": []}
    save_yaml(tmp_path / "config.yaml", {"architecture": architecture, "tasks": {"s3": {**task, **options}}, **rest})
    (tmp_path / "s3").mkdir()
    (tmp_path / "s3" / "last.ckpt").write_bytes(b"PK\x03\x04 the rest is missing")
    assert run_trial(tmp_path) == 0
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert (report["outcome"], report["reason"], report["metrics"]["s3"]["tokens"]) == ("completed", None, 48.0)


def test_a_lost_worker_is_told_of_while_the_others_work(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_arguments", lambda *_: ["status", str(tmp_path)])
    options, said = Options(file="space.yaml", output=tmp_path, trials=1, seed=0, workers=2), []
    with session._workers(options, tmp_path, None, [()], said.append):
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "-1 has ended, exit status 1: error: " in said[0]
    assert "holds no study" in said[0]
