import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archsearch.search.process import read_report, run_trial

CONFIG = {"architecture": {"pattern": "MA"}, "seed": 0, "budget": None}


def ignore(report):
    pass


def run(folder, config=CONFIG, timeout=30.0):
    return run_trial(folder, config, timeout=timeout, watch=ignore)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.usefixtures("fake_trial")
def test_a_trial_reports_its_metrics(tmp_path):
    report = run(tmp_path)
    assert report["outcome"] == "completed"
    assert report["metrics"]["s3"]["accuracy"] == 0.15


@pytest.mark.parametrize(
    ("mode", "reason"), [("crash", "exit status 1: it broke"), ("signal", "ended by SIGSEGV; see")]
)
def test_a_death_is_a_failure_with_its_reason(tmp_path, fake_trial, mode, reason):
    fake_trial(mode)
    report = run(tmp_path)
    assert report["outcome"] == "failed"
    assert report["reason"].startswith(reason)


def test_a_trial_that_hangs_ends_with_its_children(tmp_path, fake_trial):
    fake_trial("hang")
    report = run(tmp_path, timeout=3.0)
    assert report["reason"] == "timed out after 3 s (study.timeout_per_trial) in train s3"
    assert eventually(lambda: not is_running(report["pid"]) and not is_running(report["child"]))


def test_an_exception_in_the_parent_kills_the_trial(tmp_path, fake_trial):
    fake_trial("hang")

    def interrupt(report):
        if "child" in report:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(tmp_path, CONFIG, timeout=30, watch=interrupt)
    assert eventually(lambda: not is_running(read_report(tmp_path)["pid"]))


@pytest.mark.usefixtures("fake_trial")
def test_a_trial_dies_with_a_parent_that_is_killed(tmp_path):
    script = (
        "import sys; from pathlib import Path; from archsearch.search import process; "
        f"process.COMMAND = ({sys.executable!r}, {str(Path(__file__).with_name('fake_trial.py'))!r}, 'hang'); "
        f"process.run_trial(Path({str(tmp_path)!r}), {CONFIG!r}, timeout=60, watch=lambda report: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    assert eventually(lambda: "child" in read_report(tmp_path))
    parent.kill()
    parent.wait()
    report = read_report(tmp_path)
    assert eventually(lambda: not is_running(report["pid"]) and not is_running(report["child"]))


@pytest.mark.usefixtures("fake_trial")
def test_a_trial_started_by_hand_does_not_end_its_shell(tmp_path):
    (tmp_path / "config.yaml").write_text("architecture: {pattern: MA}\nseed: 0\nbudget: null\n")
    command = [sys.executable, str(Path(__file__).with_name("fake_trial.py")), "ok", str(tmp_path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    assert read_report(tmp_path)["outcome"] == "completed"
    assert os.getpid() > 0


@pytest.mark.usefixtures("fake_trial")
def test_what_another_config_has_left_is_not_taken_up(tmp_path):
    assert run(tmp_path)["starts"] == 1
    assert run(tmp_path)["starts"] == 2
    assert run(tmp_path, {**CONFIG, "tables": {"train": {"path": "of another machine"}}})["starts"] == 3
    assert run(tmp_path, {**CONFIG, "seed": 1})["starts"] == 1
