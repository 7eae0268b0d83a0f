"""The commands on a small mixture of experts."""

import json

import pytest

from archsearch.cli import main

SMALL = """
format: 1
hidden_size: 16
vocab_size: 32
pattern: MA
mixers: {M: {type: m2rnn, num_heads: 2, key_head_dim: 4, value_head_dim: 4}, A: {type: attention, num_heads: 2}}
mlp: {type: moe, num_experts: 4, experts_per_token: 2, intermediate_size: 8, shared_intermediate_size: 8}
mlps: {A: {type: swiglu, intermediate_size: 24}}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def test_inspect_shows_the_mlp_of_each_letter(small, capsys):
    assert main(["inspect", small]) == 0
    shown = capsys.readouterr().out
    assert "MLP of M                  moe 2 of 4 experts of 8, shared 8" in shown
    assert "MLP of A                  swiglu 24" in shown
    assert main(["inspect", small, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["parameters"] - figures["active_parameters"] == 2 * 3 * 8 * 16
    assert [layer["mlp"]["type"] for layer in figures["layers"]] == ["moe", "swiglu"]
    assert figures["layers"][0]["mlp"]["experts_per_token"] == 2


def test_measure_times_experts_in_every_precision_of_a_cpu(small, capsys):
    for precision in ("fp32", "bf16"):
        flags = ["--batch-size", "1", "--length", "8", "--time-limit", "1", "--device", "cpu", "--precision", precision]
        assert main(["measure", small, *flags]) == 0
        assert "training steps of 1 x 8 tokens" in capsys.readouterr().out
