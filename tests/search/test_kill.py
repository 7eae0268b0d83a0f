"""SIGKILL in the middle of a trial: nothing lost, nothing running for ever, no duplicate, no orphan."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archsearch.config import save_yaml
from archsearch.search.process import read_report
from archsearch.search.store import read_rows

RUNNER = """
import sys
from archsearch.search import process
process.COMMAND = (sys.executable, {fake!r}, sys.argv[1])
from archsearch.cli import main
sys.exit(main(["search", *sys.argv[2:]]))
"""


def start(mode, *arguments):
    fake = str(Path(__file__).with_name("fake_trial.py"))
    command = [sys.executable, "-c", RUNNER.format(fake=fake), mode, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.timeout(240)
def test_a_killed_search_loses_nothing(values, tmp_path):
    values["study"] |= {"trials": 5, "confirm": {"top": 1, "seeds": 1}}
    save_yaml(tmp_path / "space.yaml", values)
    arguments = (tmp_path / "space.yaml", "--output", tmp_path)
    folder = tmp_path / "tiny"

    search = start("hang", *arguments)  # the base, trial 0, hangs
    assert eventually(lambda: "child" in read_report(folder / "trials" / "0000"))
    search.kill()
    search.wait()
    search.stdout.close()
    report = read_report(folder / "trials" / "0000")
    assert eventually(lambda: not is_running(report["pid"]) and not is_running(report["child"]))
    assert [row.outcome for row in read_rows(folder, "tiny")] == ["running", "waiting", "waiting"]

    search = start("ok", *arguments, "--json")
    output, _ = search.communicate(timeout=120)
    assert search.returncode == 0, output
    rows = read_rows(folder, "tiny")
    assert read_report(folder / "trials" / "0000")["starts"] == 2
    assert rows[0].outcome == "completed"
    assert {row.outcome for row in rows} <= {"completed", "illegal", "refused", "duplicate"}
    keys = [row.description.key for row in rows if row.outcome != "duplicate"]
    assert len(keys) == len(set(keys)) == 5
    assert json.loads((folder / "evidence.json").read_text())["winner"] is not None
