"""`archsearch measure` as a user runs it: small models for seconds, tables on a machine of known costs."""

import contextlib
import errno
import json
import os
import signal
import statistics
import subprocess
import sys

import pytest

from archsearch.cli import main
from archsearch.throughput.chart import Bar, draw
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.measure import Measurement, Target
from tests.throughput.fake_contestant import FakeMachine

SHORT = ["--batch-size", "1", "--length", "8", "--time-limit", "0.1", "--device", "cpu"]


@pytest.fixture
def machine(monkeypatch):
    return FakeMachine(noise=0.001).use(monkeypatch)


@pytest.fixture
def space(tmp_path):
    from archsearch.config import load_yaml, save_yaml

    values = load_yaml("search_spaces/demo.yaml")
    values["tasks"] = {"s3": values["tasks"]["s3"]}
    values["objectives"] = values["objectives"][:1]
    path = tmp_path / "demo.yaml"
    save_yaml(path, values)
    return path


@pytest.mark.parametrize("mode", ["train", "decode"])
def test_real_steps_are_measured(mode, capsys):
    assert main(["measure", "A2", "A", *SHORT, "--mode", mode]) == 0
    shown = capsys.readouterr().out
    words = {"train": "training steps", "decode": "generation steps"}
    assert words[mode] in shown
    assert "held on the device together" in " ".join(shown.split())
    assert "●" in shown


@pytest.mark.usefixtures("machine")
def test_figures_and_a_verdict_are_written_as_json(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["measure", "R5M", "--against", "R6", "--at-least", "0.9", "--json", "--output", str(out), *SHORT]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == figures
    (result,) = figures["results"]
    assert result["ratio"] == pytest.approx(78 / 79, rel=2e-3)
    assert result["ratio_low"] < result["ratio"] < result["ratio_high"]
    assert (result["verdict"], result["rounds"], result["mfu"]) == ("feasible", 6, None)
    assert len(result["round_ratios"]) == 6
    assert statistics.median(result["round_ratios"]) == pytest.approx(result["ratio"])
    assert result["milliseconds"] == pytest.approx(79, rel=5e-3)
    assert result["tokens_per_second"] == pytest.approx(8 / 0.079, rel=5e-3)
    assert figures["conditions"]["length"] == 8
    assert main(["measure", "R5M", "--against", "R6", "--at-least", "200", *SHORT]) == 0
    assert "infeasible, p = 0.97" in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_an_interval_that_too_few_rounds_leave_open_is_null_in_json(capsys):
    arguments = ["measure", "R6", "R5M", *SHORT, "--confidence", "0.999", "--time-limit", "1e-9"]
    assert main([*arguments, "--json"]) == 0
    anchor, other = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["results"]
    assert [other[f"ratio_{side}"] for side in ("low", "high")] == [None, None]
    assert [anchor[f"tokens_per_second_{side}"] for side in ("low", "high")] == [None, None]
    assert main(arguments) == 0
    assert " open " in capsys.readouterr().out


def test_the_first_pattern_gets_its_verdict_on_tokens_per_second_too(monkeypatch, capsys):
    FakeMachine(noise=0.005).use(monkeypatch)
    arguments = ["--batch-size", "1", "--length", "8", "--device", "cpu"]
    assert main(["measure", "R6", "M", "--at-least", "102.2", "--json", *arguments]) == 0
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert (first["verdict"], second["verdict"]) == ("feasible", "feasible")


def test_an_isolated_process_measures_its_architecture_against_the_anchor(capsys):
    assert main(["measure", "A16", "--against", "A", *SHORT, "--isolate", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["isolated"] is True
    assert len(figures["results"][0]["round_ratios"]) == figures["results"][0]["rounds"]
    # a sixteenth plus what no block takes; whatever else a machine does meanwhile costs no factor of ten
    assert 0.01 < figures["results"][0]["ratio"] < 0.7


def test_an_isolated_process_that_fails_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("archsearch.throughput.isolate.sys.executable", "/bin/false")
    assert main(["measure", "A", *SHORT, "--isolate"]) == 1
    assert capsys.readouterr().err == "error: A: exit status 1\n"


def test_an_isolated_process_ends_with_the_one_that_started_it(tmp_path):
    (tmp_path / "slow.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    code = (
        "from archsearch.architecture import resolve; from archsearch.throughput.isolate import *; "
        "model = resolve('A', None); measure_isolated([model], model, Conditions(), plugins=['slow'])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        isolated = int(parent.stdout.readline())
        parent.kill()
        try:
            parent.communicate(timeout=5)  # both write to this pipe: it ends when both have
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(isolated, signal.SIGKILL)


def test_a_table_is_made_checked_and_asked(space, machine, tmp_path, capsys):
    table = tmp_path / "table.json"
    command = ["measure", "--table", str(space), "--output", str(table), "--device", "cpu", "--held-out", "3"]
    assert main([*command, "--stop-after", "0"]) == 0
    assert "stopped as asked" in capsys.readouterr().out
    assert main([*command, "--check", "6"]) == 0
    shown = capsys.readouterr().out
    assert "R: gated_deltanet" in shown
    assert "whole R3A" in shown
    assert "not in the table" in shown
    assert "6 patterns predicted, then measured: median error 0." in shown
    checked = json.loads((tmp_path / "checks" / "table.seed1.json").read_text())
    assert checked["complete"]
    assert checked["largest_error"] < 0.02
    assert sum(bool(record["missing"]) for record in checked["patterns"]) == 2
    machine.log.clear()
    assert main([*command, "--check", "6", "--json"]) == 0
    assert machine.log == []  # nothing is measured twice
    figures = json.loads(capsys.readouterr().out)
    assert (figures["complete"], figures["residuals"]["number"]) == (True, 3)

    assert main(["measure", "RMRA", "R3A", "--against", "R3A", "--like", str(space), "--predict", str(table)]) == 0
    shown = capsys.readouterr().out
    assert "predicted from" in shown
    assert "warning" not in shown
    assert "verdict" not in shown
    ask = ["measure", "R3A", "R3M3", "--like", str(space), "--predict", str(table), "--at-least"]
    yes, no = "feasible", "infeasible"
    for at_least, verdicts in (("0.5", [yes, yes]), ("1", [yes, no]), ("1e9", [no, no])):
        assert main([*ask, at_least, "--json"]) == 0
        assert [row["verdict"] for row in json.loads(capsys.readouterr().out)["results"]] == verdicts
    assert main([*ask, "0.5"]) == 0
    assert "feasible, p = 0.999" in capsys.readouterr().out
    assert machine.log == []


def test_a_table_of_another_machine_is_not_added_to_and_predicts_with_a_warning(space, machine, tmp_path, capsys):  # noqa: ARG001
    table = tmp_path / "table.json"
    command = ["measure", "--table", str(space), "--output", str(table), "--device", "cpu", "--held-out", "1"]
    assert main(command) == 0
    plain = json.loads(table.read_text())
    plain["key"]["card"] = "NVIDIA H200"
    table.write_text(json.dumps(plain))
    assert main(command) == 1
    assert "is a table of another machine (card NVIDIA H200, not CPU" in capsys.readouterr().err
    ask = ["measure", "R3A", "--like", str(space), "--predict", str(table)]
    assert main(ask) == 0
    assert "warning: predicted for another machine, NVIDIA H200" in " ".join(capsys.readouterr().out.split())
    assert main(["measure", "S3A", "--like", str(space), "--predict", str(table)]) == 1
    assert "not in the table: S: mamba2, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give PATTERN|FILE, or --table SPACE.yaml"),
        (["M", "--table", "x.yaml"], "give PATTERN|FILE, or --table SPACE.yaml"),
        (["M", "--mode", "fly"], "mode must be one of train, prefill, decode; got 'fly'"),
        (["M", "--confidence", "0.5"], "confidence must lie between 0.5 and 1; got 0.5"),
        (["M", "--time-limit", "nan"], "time_limit must be positive and finite; got nan"),
        (["M", "--time-limit", "inf"], "time_limit must be positive and finite; got inf"),
        (["M", "--at-least", "0"], "at_least must be positive and finite; got 0.0"),
        (["M", "--at-least", "-1"], "at_least must be positive and finite; got -1.0"),
        (["M", "--at-least", "nan"], "at_least must be positive and finite; got nan"),
        (["M", "--predict", "nowhere.json"], "nowhere.json: no such file"),
        (["M", "--predict", "x.json", "--isolate"], "--isolate: has no meaning with --predict"),
        (["M", "--predict", "x.json", "--layers", "2"], "--layers: has no meaning with --predict"),
        (["M", "--check", "0"], "--check: has no meaning with PATTERN|FILE"),
        (["M", "--held-out", "8"], "--held-out: has no meaning with PATTERN|FILE"),
        (["M", "--stop-after", "1h"], "--stop-after: has no meaning with PATTERN|FILE"),
        (["--table", "x.yaml", "--predict", "x.json"], "--predict: has no meaning with --table"),
        (["--table", "x.yaml", "--at-least", "0.9"], "--at-least: has no meaning with --table"),
        (["--table", "x.yaml", "--layers", "0"], "--layers: must be at least 1; got 0"),
        (["--table", "x.yaml", "--held-out", "-1"], "--held-out: must be at least 0; got -1"),
        (["--table", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["measure", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("way", ["patterns", "table"])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("folder", "folder: is a folder, and not replaced by the other kind"),
        ("file/out.json", "file/out.json: file: is no folder"),
        ("/proc/out.json", "/proc/out.json: cannot be written: "),
    ],
)
def test_where_nothing_can_be_written_nothing_is_measured(way, output, message, space, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("archsearch.throughput.contestant.Stage.__enter__", lambda _: pytest.fail("measured"))
    what = ["R", *SHORT] if way == "patterns" else ["--table", str(space), "--device", "cpu"]
    assert main(["measure", *what, "--output", output]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("flags", [["--json"], []])
def test_figures_that_cannot_be_written_any_more_are_shown(flags, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("archsearch.files.write_atomic", full)
    assert main(["measure", "R", *SHORT, *flags, "--output", str(tmp_path / "new/out.json")]) == 1
    out, err = capsys.readouterr()
    assert "tokens" in out
    assert err == f"error: {tmp_path}/new/out.json: cannot be written: No space left on device\n"


def test_the_chart_shows_intervals_around_the_anchor():
    lines = draw([Bar(label="RM", low=0.9, median=0.95, high=0.97), Bar(label="R", low=1, median=1, high=1)], width=40)
    assert lines[1].index("├") < lines[1].index("●") < lines[1].index("┤") < lines[1].index("│")
    assert lines[2].index("●") == lines[1].index("│")
    assert [len(line) for line in lines] == [44, 44, 44]


def test_measurements_and_targets_are_plain_values():
    assert Conditions(mode="decode", batch_size=3, length=100).tokens_per_step == 3
    assert Conditions(batch_size=3, length=100).tokens_per_step == 300
    assert Target(at_least=0.9).absolute is False
    assert Measurement.__dataclass_fields__["mode"].default == "train"
