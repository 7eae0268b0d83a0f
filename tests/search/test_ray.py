"""Trials as tasks of a Ray cluster: two nodes are really started on this machine, and one is killed."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archsearch.config import ConfigError
from archsearch.search.process import read_report
from archsearch.search.ray_launcher import RayLauncher, resources_of_trial, run_here
from archsearch.search.session import Options, run
from archsearch.search.store import read_rows

FAKE_TRIAL = Path(__file__).with_name("fake_trial.py")
CONFIG = {"architecture": {"pattern": "MA"}, "seed": 0, "budget": None, "tables": {"train": {"path": "away"}}}


def ignore(_):
    pass


def here(folder, token, mode="ok", before=None, tell=ignore):
    command = (sys.executable, str(FAKE_TRIAL), mode)
    return run_here(folder, token, CONFIG, timeout=30, command=command, before=before or {}, tell=tell)


def test_a_folder_that_the_driver_shares_is_used(tmp_path):
    (tmp_path / "driver").write_text("token")
    report, log = here(tmp_path, "token")
    assert (report["outcome"], log) == ("completed", None)
    assert read_report(tmp_path) == report


def test_another_machines_folder_of_the_same_name_is_left_alone(tmp_path):
    (tmp_path / "driver").write_text("of another trial")
    told = []
    report, log = here(tmp_path, "token", "crash", before={"starts": 4}, tell=told.append)
    assert report["reason"] == "exit status 1: it broke"
    assert report["starts"] == 5
    assert log.strip() == "it broke"
    assert [path.name for path in tmp_path.iterdir()] == ["driver"]
    report, _ = here(tmp_path / "nowhere", "token", "signal")
    assert report["reason"].endswith(f"see {tmp_path}/nowhere/log.txt")


def test_a_trial_asks_for_gpus_where_the_cluster_has_any():
    assert resources_of_trial([{"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}], 2) == {"num_gpus": 2, "num_cpus": 1}
    assert resources_of_trial([{"CPU": 8.0}, {}], 2) == {"num_cpus": 2}
    with pytest.raises(ConfigError, match=r"needs 4 GPUs \(study\.devices\) of one node; most: 2"):
        resources_of_trial([{"GPU": 2.0}, {"GPU": 2.0, "CPU": 9}], 4)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'archsearch\[ray\]'"):
        RayLauncher(1)


@pytest.fixture
def cluster(monkeypatch):
    """A head that runs nothing and two nodes of one processor and, as far as Ray knows, one GPU each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", f"{root}:{os.environ.get('PYTHONPATH', '')}")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    try:
        cluster.two = [cluster.add_node(num_cpus=1, num_gpus=1) for _ in range(2)]
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def ancestors(pid):
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_study_outlives_a_node(cluster, parse, tmp_path, monkeypatch):
    trials, go = tmp_path / "tiny" / "trials", tmp_path / "go"
    monkeypatch.setattr("archsearch.search.process.COMMAND", (sys.executable, str(FAKE_TRIAL), f"wait:{go}"))

    def kill_the_node_of_trial_0():
        try:
            if eventually(lambda: all("pid" in read_report(trials / f"000{i}") for i in (0, 1))):  # side by side
                pid = read_report(trials / "0000")["pid"]
                line = set(ancestors(pid))
                its = [node for node in cluster.two if node.all_processes["raylet"][0].process.pid in line]
                cluster.remove_node(*its, allow_graceful=False)
                assert eventually(lambda: not Path(f"/proc/{pid}").exists())
        finally:
            go.touch()

    with ThreadPoolExecutor() as meanwhile:
        killed = meanwhile.submit(kill_the_node_of_trial_0)
        run(parse(), Options(file="space.yaml", output=tmp_path, trials=4, seed=0, workers=2, launcher="ray"))
    assert killed.exception() is None
    rows = read_rows(tmp_path / "tiny", "tiny")
    keys = [row.description.key for row in rows if row.outcome != "duplicate"]
    assert len(keys) == len(set(keys)) == 4
    assert {row.outcome for row in rows} <= {"completed", "illegal", "refused", "duplicate"}
    ran = [row.number for row in rows if row.outcome == "completed"]
    assert [read_report(trials / f"{number:04d}")["starts"] for number in ran] == [2, *(1 for _ in ran[1:])]
    assert {read_report(trials / f"{number:04d}")["gpus"] for number in ran} == {"0"}
    assert len(list(trials.glob("confirm-*"))) == 6

    # what is lost again and again is a failure
    monkeypatch.setattr("archsearch.search.ray_launcher.RETRIES", 0)
    monkeypatch.setattr("archsearch.search.process.COMMAND", (sys.executable, str(FAKE_TRIAL), "orphan"))
    report = RayLauncher(1)(tmp_path / "orphan", CONFIG, timeout=30, watch=ignore)
    assert report["outcome"] == "failed"
    assert report["reason"].startswith("lost by Ray after 1 attempts: WorkerCrashedError: ")
