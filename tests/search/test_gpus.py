"""Which GPUs a worker gets; no GPU is needed to know."""

import pytest

from archsearch.cli import main
from archsearch.config import ConfigError, save_yaml
from archsearch.search import gpus


def test_each_worker_has_gpus_of_its_own():
    assert gpus.assign(["0", "1", "2", "3"], 3, 1) == [("0",), ("1",), ("2",)]
    assert gpus.assign(["4", "GPU-1a", "6", "7"], 2, 2) == [("4", "GPU-1a"), ("6", "7")]


def test_without_gpus_workers_share_the_processor():
    assert gpus.assign([], 3, 2) == [(), (), ()]
    assert gpus.use(()) == {}


def test_too_few_gpus_are_an_error_that_counts_them():
    message = r"^--workers: needs 2 x 2 GPUs \(study\.devices\) = 4, and there are 3 \(CUDA_VISIBLE_DEVICES=5,6,7\); "
    with pytest.raises(ConfigError, match=message):
        gpus.assign(["5", "6", "7"], 2, 2)
    with pytest.raises(ConfigError, match=r"needs 2 x 1 GPU \(study\.devices\) = 2, and there is 1 \("):
        gpus.assign(["0"], 2, 1)


@pytest.mark.parametrize(
    ("variable", "count", "names"),
    [(None, 2, ["0", "1"]), ("3, 1", 2, ["3", "1"]), ("2,-1,3", 1, ["2"]), ("", 0, []), ("-1", 0, [])],
)
def test_what_the_environment_allows_is_what_there_is(monkeypatch, variable, count, names):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(gpus.VARIABLE, variable)
    assert gpus.visible() == names


@pytest.mark.usefixtures("instant_trial")
def test_workers_are_started_with_the_gpus_that_are_left(values, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 6)
    monkeypatch.setenv(gpus.VARIABLE, "7,6,5,4,3,2")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS" >>{tmp_path}/seen\n')
    script.chmod(0o755)
    monkeypatch.setattr("archsearch.search.session.sys.executable", str(script))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    values["study"]["devices"] = 2
    save_yaml(tmp_path / "space.yaml", values)
    command = ["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path), "--timeout", "0s"]
    main([*command, "--workers", "3"])
    assert sorted((tmp_path / "seen").read_text().splitlines()) == ["3,2 1", "5,4 1"]
    assert gpus.os.environ[gpus.VARIABLE] == "7,6"

    monkeypatch.setenv(gpus.VARIABLE, "7,6,5,4,3,2")
    assert main([*command, "--workers", "4", "--fresh"]) == 1
