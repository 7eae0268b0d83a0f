import dataclasses
import json
from pathlib import Path

import pytest

from archsearch.cli import main
from archsearch.commands.mixers import _default


def test_inspect_shows_layers_and_figures(capsys):
    assert main(["inspect", "RRRRRRMA", "--length", "1000"]) == 0
    shown = capsys.readouterr().out
    for text in ("R6MA", "8 layers", "gated_deltanet", "m2rnn", "attention", "0-5", "recurrent state", "1,000 tokens"):
        assert text in shown


def test_inspect_as_json_gives_exact_figures(capsys):
    assert main(["inspect", "M2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["pattern"] == {"compact": "M2", "expanded": "MM"}
    assert figures["parameters"] == sum(layer["parameters"] for layer in figures["layers"]) + 128


def test_a_users_error_is_one_line_and_exit_code_1(capsys):
    assert main(["inspect", "nowhere.yaml"]) == 1
    assert capsys.readouterr().err == "error: nowhere.yaml: no such file\n"
    assert main(["inspect", "RXA"]) == 1
    assert capsys.readouterr().err.startswith("error: pattern: unknown letter 'X' at position 2; letters of this")


def test_wrong_usage_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["inspect"])
    assert stopped.value.code == 2
    assert "the following arguments are required: PATTERN|FILE" in capsys.readouterr().err


def test_an_interrupt_is_exit_code_130(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("archsearch.cli._run", interrupted)
    assert main(["inspect", "R"]) == 130


def test_mixers_says_why_a_backend_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("archsearch.kernels.dispatch.importlib.util.find_spec", lambda _: None)
    assert main(["mixers"]) == 0
    shown = capsys.readouterr().out
    assert "no: triton is not installed" in shown
    assert main(["mixers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["m2rnn"]["letters"] == "M"


def test_the_readme_shows_what_inspect_prints(capsys):
    readme = Path(__file__).parents[2] / "README.md"
    shown = readme.read_text(encoding="utf-8").split("$ archsearch inspect R6MA\n")[1].split("```")[0]
    assert main(["inspect", "R6MA"]) == 0
    assert capsys.readouterr().out.split() == shown.split()


def test_a_mixer_says_what_it_takes(capsys):
    assert main(["mixers", "m2rnn"]) == 0
    shown = capsys.readouterr().out
    assert "`conv_width: null` leaves out the short convolution" in shown
    assert ["conv_width", "int", "|", "None", "4"] in [line.split() for line in shown.splitlines()]
    assert main(["mixers", "M", "--json"]) == 0
    options = json.loads(capsys.readouterr().out)
    assert options["num_gate_heads"] == {"type": "int | None", "default": None}
    fields = [("width", "int"), ("taps", "list[int]", dataclasses.field(default_factory=lambda: [1, 2]))]
    options = dataclasses.make_dataclass("Options", fields)
    assert [_default(field) for field in dataclasses.fields(options)] == [{}, {"default": [1, 2]}]
    assert main(["mixers", "m3rnn"]) == 1
    assert "unknown mixer 'm3rnn' (did you mean 'm2rnn'?)" in capsys.readouterr().err


def test_a_plugin_that_cannot_be_imported_is_named(capsys):
    assert main(["mixers", "--plugin", "no_such_module"]) == 1
    assert "--plugin no_such_module: cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "0"], "batch_size must be positive and finite; got 0"),
        (["--length", "-1"], "length must be positive and finite; got -1"),
        (["--time-limit", "0"], "time_limit must be positive and finite; got 0.0"),
        (["--confidence", "2"], "confidence must lie between 0.5 and 1; got 2.0"),
        (["--device", "foo"], "device must be one of this machine's, cpu"),
        (["--device", "cuda:99"], "device must be one of this machine's, cpu"),
    ],
)
def test_measure_refuses_conditions_that_cannot_be_met(flags, message, capsys):
    assert main(["measure", "M", *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_inspect_refuses_a_length_below_one(capsys):
    assert main(["inspect", "M", "--length", "0"]) == 1
    assert capsys.readouterr().err == "error: --length: must be at least 1; got 0\n"


def test_measure_compares_training_steps_and_names_the_device(capsys):
    assert (
        main(["measure", "M", "A", "--batch-size", "1", "--length", "8", "--time-limit", "1", "--device", "cpu"]) == 0
    )
    shown = capsys.readouterr().out
    assert "of anchor" in shown
    assert "training steps of 1 x 8 tokens in fp32 on CPU" in shown
    assert main(["measure", "M", "--precision", "fp8"]) == 1
    assert "precision must be one of fp32, bf16, fp16; got 'fp8'" in capsys.readouterr().err
