from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONTRACT = """
import pytest

@pytest.mark.parametrize("name", ["fast", "slow"])
class TestContract:
    @pytest.mark.parametrize("length", [1, 2, 3])
    @pytest.mark.proves("packed")
    def test_length(self, name, length):
        assert name == "fast" or length == 2

    @pytest.mark.proves("causal")
    def test_causal(self, name):
        pass

def test_else():
    pass
"""


def run_pytest(folder: Path, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file of tests beside a copy of this folder's conftest.py."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "two workers"])
def test_a_run_prints_which_mixer_has_which_property(tmp_path: Path, workers: list[str]) -> None:
    lines = run_pytest(tmp_path, CONTRACT, *workers).stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if "mixer contract" in line)
    assert lines[start + 1 : start + 4] == [
        "      causal  packed",
        "fast  1 ok    3 ok",
        "slow  1 ok    2 of 3 FAILED",
    ]


def test_a_run_without_the_contract_prints_no_table(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "def test_else():\n    pass\n")
    assert run.returncode == pytest.ExitCode.OK
    assert "mixer contract" not in run.stdout


def test_a_property_that_is_no_column_is_refused(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, CONTRACT.replace('"causal"', '"casual"'))
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "proves: must be one of ['causal', " in run.stderr
    assert "got 'casual'" in run.stderr
