"""Studies on PostgreSQL: a server is really started, and each worker has a folder of its own, as on its own machine."""

import contextlib
import errno
import json
import multiprocessing
import sys
import threading
import time
import uuid
from pathlib import Path
from unittest.mock import Mock

import pytest

from archsearch.cli import main
from archsearch.config import ConfigError, save_yaml
from archsearch.search import process
from archsearch.search.database import ServerGoneError, hide_password, parse_database
from archsearch.search.locks import FileLock
from archsearch.search.process import read_report
from archsearch.search.session import Options, run
from archsearch.search.status import read_status
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study
from archsearch.search.work_folder import alone_in
from tests.search.server import PASSWORD, QUOTED

FAKE_TRIAL = Path(__file__).with_name("fake_trial.py")


class Said:
    """A view that remembers what was said, and does something then."""

    def __init__(self, happens=lambda: None):
        self.lines, self._happens = [], happens

    def update(self, rows, running):
        pass

    def say(self, text):
        self.lines.append(text)
        self._happens()


@pytest.fixture
def space_file(values, tmp_path):
    values["study"] |= {"trials": 6, "confirm": {"top": 1, "seeds": 1}}
    save_yaml(tmp_path / "space.yaml", values)
    return str(tmp_path / "space.yaml")


@pytest.fixture
def machine(space_file, parse, tmp_path):
    """Start `archsearch search` in a process; what it says is in DIR/said.txt."""
    parse()  # imports, which forked processes need not do again
    started = []

    def start(name, url, mode="ok"):
        output = tmp_path / name
        worker = multiprocessing.get_context("fork").Process(target=_search, args=(mode, space_file, output, url))
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.join()


def _search(mode, space_file, output, url):
    output.mkdir()
    sys.stdout = sys.stderr = (output / "said.txt").open("w", buffering=1)
    process.COMMAND = (sys.executable, str(FAKE_TRIAL), mode)
    process.POLL_SECONDS = 0.02
    sys.argv = ["archsearch", "search", space_file, "--output", str(output), "--storage", url]
    sys.exit(main(sys.argv[1:]))


@pytest.fixture
def open_store(parse, tmp_path, database_url):
    """Open the study as another worker does."""
    with contextlib.ExitStack() as opened:

        def open_store(name):
            folder = tmp_path / name
            folder.mkdir()
            store = Store(folder, parse(), 0, parse_database(database_url))
            opened.callback(store.close)
            return store

        yield open_store


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def ran(output):
    return {int(path.parent.name) for path in (output / "tiny" / "trials").glob("[0-9]*/config.yaml")}


def test_machines_share_one_study_and_one_count(machine, space_file, database_url, postgres, tmp_path, capsys):
    workers = [machine(name, database_url) for name in ("one", "two")]
    for worker in workers:
        worker.join(timeout=60)
    outputs = [tmp_path / "one", tmp_path / "two"]
    assert [worker.exitcode for worker in workers] == [0, 0], [(x / "said.txt").read_text() for x in outputs]

    assert main(["status", str(tmp_path / "elsewhere" / "tiny"), "--storage", database_url, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["finished"]
    assert status["winner"] is not None
    outcomes = [trial["result"]["outcome"] for trial in status["trials"]]
    assert set(outcomes) <= {"completed", "illegal", "refused", "duplicate", "waiting"}
    keys = [trial["description"]["key"] for trial in status["trials"] if trial["result"]["outcome"] != "duplicate"]
    assert len(keys) == len(set(keys)) == 6
    assert ran(outputs[0]) | ran(outputs[1]) == {i for i, outcome in enumerate(outcomes) if outcome == "completed"}
    assert not ran(outputs[0]) & ran(outputs[1])
    assert all(ran(output) for output in outputs)
    again = [path.parent.name for output in outputs for path in output.rglob("confirm-*/config.yaml")]
    assert len(again) == len(set(again)) == 2  # the best and the base, each trained by one machine

    for output in outputs:  # a second time without --storage
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGPASSWORD", PASSWORD)
            assert main(["search", space_file, "--output", str(output)]) == 0
        assert "finished before" in capsys.readouterr().out
        assert json.loads((output / "tiny" / "evidence.json").read_text())["winner"] == status["winner"]

    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    with postgres.connect(database_url.split("@/")[1].split("?")[0]) as connection:
        for table in ("study_user_attributes", "trial_user_attributes", "study_system_attributes"):
            written += [value for (value,) in connection.execute(f"select value_json from {table}")]
    assert any("--storage" in text for text in written)
    assert not [text for text in written if PASSWORD in text or QUOTED in text]


@pytest.mark.parametrize("output", ["two", "one"], ids=["own folders", "a shared folder"])
def test_a_killed_machine_is_noticed_and_its_trial_adopted(
    machine, database_url, space_file, tmp_path, fake_trial, output
):
    one, two = tmp_path / "one" / "tiny", tmp_path / output
    worker = machine("one", database_url, mode="hang")
    assert eventually(lambda: "child" in read_report(one / "trials" / "0000"))
    status = read_status(tmp_path / "tiny", database_url)
    assert (list(status.alive), status.abandoned) == ([0], [])
    worker.kill()
    worker.join()
    assert eventually(lambda: read_status(tmp_path / "tiny", database_url).abandoned == [0])

    fake_trial()
    assert main(["search", space_file, "--output", str(two), "--storage", database_url]) == 0
    rows = read_status(two / "tiny", database_url).rows
    assert rows[0].outcome == "completed"
    shared = output == "one"
    assert read_report(two / "tiny" / "trials" / "0000")["starts"] == (2 if shared else 1)  # goes on, or begins anew
    assert shared or read_report(one / "trials" / "0000")["starts"] == 1
    assert {row.outcome for row in rows} <= {"completed", "illegal", "refused", "duplicate"}


def test_a_live_trial_is_nobody_elses(open_store):
    one, two = open_store("one"), open_store("two")
    with one.lock:
        assert not two.locks.study().take(wait=False)
        hold = one.ask()
        one.decide(hold)
    with two.lock:
        assert two.locks.is_held(0)
        assert two.adopt() is None
    one.close()  # as its end does
    assert eventually(lambda: not two.locks.is_held(0))
    with two.lock:
        assert two.adopt().number == hold.number == 0


@pytest.fixture
def study(open_store, monkeypatch):
    """One worker of which the first trial goes on while something happens."""

    def study(happens, view):
        def run_trial(*_, watch, **__):
            happens(watch=watch)
            return {"outcome": "completed", "metrics": {"s3": {"accuracy/16": 0.5, "loss": 0.25}}}

        monkeypatch.setattr("archsearch.search.study.run_trial", run_trial)
        monkeypatch.setattr("archsearch.search.study.RETRY_SECONDS", 0.05)
        store = open_store("one")
        return Study(store.space, store, Limits(trials=1), view)

    return study


def test_who_takes_a_trial_over_keeps_out_of_a_folder_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr("archsearch.search.work_folder.PATIENCE", 0.0)
    with alone_in(tmp_path / "0005") as cut_off:
        (cut_off / "last.ckpt").touch()
        with alone_in(tmp_path / "0005") as another:
            assert (cut_off.name, another.name) == ("0005", "0005.2")
    with alone_in(tmp_path / "0005") as later:
        assert (later / "last.ckpt").exists()


def test_who_takes_a_trial_over_waits_for_the_lock_of_a_dead_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("archsearch.search.work_folder.POLL_SECONDS", 0.01)
    lock = FileLock(tmp_path / "lock")
    lock.take(wait=False)
    threading.Timer(0.2, lock.release).start()
    with alone_in(tmp_path) as folder:
        assert folder == tmp_path


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with alone_in(tmp_path / "0005") as folder:
        assert folder == tmp_path / "0005"


def test_a_folder_is_of_one_study(open_store, parse, postgres):
    store = open_store("one")
    Store(store.folder, store.space, 0, store.database).close()
    other = parse_database(postgres.make_database(f"other_{uuid.uuid4().hex}"))
    with pytest.raises(
        ConfigError, match=r"one: holds trials of an earlier study of this name, and postgresql:.*other"
    ):
        Store(store.folder, parse(), 0, other)


def test_a_restart_of_the_server_costs_no_trial(study, postgres):
    def restart(watch):
        postgres.stop()
        watch({})  # nobody to ask: the trial goes on

    one = study(restart, Said(postgres.start))
    assert one.run() == "1 distinct candidates have been tried"
    assert [row.outcome for row in one.store.rows()] == ["completed", "waiting", "waiting"]
    assert len(one.view.lines) == 1
    assert "waiting for the server" in one.view.lines[0]


@pytest.mark.parametrize("looks", [True, False])
def test_after_a_restart_a_trial_is_told_by_one_worker_only(study, postgres, open_store, looks):
    others = []

    def lose(watch):
        if others:
            return
        others.append(open_store("two"))
        postgres.stop()
        postgres.start()
        others[0].locks.revive()
        with others[0].lock:
            others.append(others[0].adopt())
            others[0].decide(others[1])
        if looks:
            watch({})
            pytest.fail("a trial that another worker runs went on")

    one = study(lose, Said())
    assert one.run() == "1 distinct candidates have been tried"
    assert one.view.lines[-1] == "trial 0: another worker has it by now; what this one found is dropped"
    assert one.store.rows()[0].outcome == "running"
    assert others[0].is_ours(others[1])
    assert not one.store.locks.trial(0).take(wait=False)


def test_a_trial_that_another_worker_has_ended_is_not_told_again(study, postgres, open_store):
    others = []

    def lose(**_):
        other = open_store("two")
        postgres.stop()
        postgres.start()
        other.locks.revive()
        with other.lock:
            hold = other.adopt()
            other._study.tell(hold.trial, [0.125, 0.5])
        hold.lock.release()
        others.append(other)

    one = study(lose, Said())
    one.run()
    assert one.view.lines[-1] == "trial 0: another worker has it by now; what this one found is dropped"
    assert others[0]._study.trials[0].values == [0.125, 0.5]


def test_further_workers_get_the_password_by_their_environment(space_file, database_url, tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\necho "$PGPASSWORD" >{tmp_path}/password\n')
    script.chmod(0o755)
    monkeypatch.setattr("archsearch.search.session.sys.executable", str(script))
    command = ["search", space_file, "--output", str(tmp_path), "--storage", database_url, "--workers", "2"]
    main([*command, "--timeout", "0s"])
    assert f"--storage {parse_database(database_url)}" in (tmp_path / "arguments").read_text()
    assert QUOTED not in (tmp_path / "arguments").read_text()
    assert (tmp_path / "password").read_text().strip() == PASSWORD


@pytest.mark.usefixtures("instant_trial")
def test_a_study_stays_where_it_began(parse, tmp_path, database_url, postgres):
    space, sqlite = parse(), tmp_path / "sqlite"
    common = {"file": "space.yaml", "trials": 1, "seed": 0, "timeout": 0.0}
    run(space, Options(output=tmp_path, storage=database_url, **common))
    other = postgres.make_database(f"other_{tmp_path.name}".replace("-", "_"))
    with pytest.raises(
        ConfigError, match=r"tiny is kept in postgresql://searcher@/db_.*, not in .*/other_.*another name"
    ):
        run(space, Options(output=tmp_path, storage=other, **common))
    with pytest.raises(
        ConfigError, match=r"--fresh: postgresql:.* holds the study tiny, and other machines may be at it"
    ):
        run(space, Options(output=tmp_path, fresh=True, storage=database_url, **common))
    with pytest.raises(
        ConfigError, match=r"/db_.*: the space has changed since this study began \(space\.count\.high: 3 -> 2\)"
    ):
        run(parse({"space.count.high": 2}), Options(output=tmp_path / "b", storage=database_url, **common))
    run(parse({"space.count.high": 3}), Options(output=sqlite, **common))
    with pytest.raises(ConfigError, match=r"tiny is kept in its own study\.db, not in postgresql:"):
        run(space, Options(output=sqlite, storage=database_url, **common))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((QUOTED, "wrong"), 'password authentication failed for user "searcher"'),
        (("/db_", "/no_"), "does not exist"),
        (("host=", "host=/nowhere"), "No such file or directory"),
        (("?host=", "?sslmod=require&host="), 'invalid connection option "sslmod"'),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_and_leaves_nothing(
    space_file, database_url, tmp_path, change, message, capsys
):
    assert main(["search", space_file, "--output", str(tmp_path), "--storage", database_url.replace(*change)]) == 1
    said = capsys.readouterr().err.strip()
    assert "postgresql://searcher@/" in said
    assert message in said
    assert "\n" not in said
    assert QUOTED not in said
    assert not (tmp_path / "tiny").exists()


def test_a_database_without_the_study_is_named(database_url, tmp_path):
    with pytest.raises(ConfigError, match=r"postgresql://searcher@/db_.*: holds no study of the name tiny$"):
        read_status(tmp_path / "tiny", database_url)


def test_nobody_listens(tmp_path):
    with pytest.raises(ServerGoneError, match=r"^postgresql://me@127\.0\.0\.1:1/db: .*Connection refused$"):
        read_status(tmp_path / "tiny", "postgresql://me:secret@127.0.0.1:1/db")


def test_a_missing_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'archsearch\[postgresql\]'"):
        parse_database("postgresql://me@host/db").connect()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret", r"must be postgresql://USER:PASSWORD@HOST/DATABASE$"),
        ("mysql://me:secret@host/db", r"; got mysql://\.\.\. \(without --storage it is SQLite\)$"),
        ("postgresql://me:secret@word@host/db", r"@ must be written as %40"),
        ("postgresql://me:secret@host:port/db", r"must be postgresql://USER:PASSWORD@HOST/DATABASE$"),
        ("postgresql://me:secret@host", r"it names no database$"),
    ],
)
def test_a_url_is_checked_and_never_repeated(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse_database(text)
    assert "secret" not in str(error.value)
    assert "word@" not in str(error.value)


def test_the_password_is_no_part_of_what_is_written():
    found = parse_database("postgresql://me:se%40cret@host/db?sslmode=require&password=other&sslpassword=third")
    assert str(found) == "postgresql://me@host/db?sslmode=require"
    assert found.password == "se@cret"
    assert "cret" not in repr(found)
    assert found.is_same(parse_database("postgresql+psycopg://you@host:5432/db"))
    assert not found.is_same(parse_database("postgresql://me@host/other"))
    assert hide_password("--storage=postgresql://me:se@cr/et@host/db") == "--storage=postgresql://me@host/db"
    assert (
        hide_password("postgresql://me@host/db?password=x&sslmode=y") == "postgresql://me@host/db?password=&sslmode=y"
    )
    assert hide_password("studies/a:b@c.yaml") == "studies/a:b@c.yaml"
