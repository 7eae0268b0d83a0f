"""The benchmark of the M²RNN kernels reports nothing of kernels that are wrong."""

from __future__ import annotations

import pytest
import torch

from archsearch.cli import main
from archsearch.throughput import bench_m2rnn


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.ones(3, requires_grad=True)]
    monkeypatch.setattr(bench_m2rnn, "draw", lambda _: (inputs, torch.ones(3)))


def results(error: float):
    def of(inputs, _, backend):
        return [inputs[0].detach() * (1 + error * (backend == "triton")), inputs[0].detach()]

    return of


@pytest.mark.usefixtures("on_a_cpu")
def test_an_error_within_the_limit_is_returned_and_one_beyond_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = bench_m2rnn.TIMED[0]
    monkeypatch.setattr(bench_m2rnn, "_results", results(0.004))
    assert bench_m2rnn.check(shape) == pytest.approx(0.004, rel=1e-3)
    for wrong in (0.02, float("nan")):
        monkeypatch.setattr(bench_m2rnn, "_results", results(wrong))
        with pytest.raises(bench_m2rnn.WrongResultError, match=r"B 8, T 4096, N 84.*nothing is timed"):
            bench_m2rnn.check(shape)


@pytest.mark.usefixtures("on_a_cpu")
def test_the_command_ends_with_one_line_and_writes_nothing(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(bench_m2rnn, "why_no_ampere", lambda: None)
    monkeypatch.setattr(bench_m2rnn, "version", lambda _: "3")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "card")
    monkeypatch.setattr(bench_m2rnn, "_first_call", lambda _: 1.0)
    monkeypatch.setattr(bench_m2rnn, "_results", results(0.5))
    assert main(["bench", "m2rnn", "--output", str(tmp_path / "bench.json")]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("error: B 8, T 4096, N 84")
    assert "ms" not in output.out
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_the_reason_is_said(capsys) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", "m2rnn"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot measure: ")
    assert main(["tune", "R"]) == 1
    assert capsys.readouterr().err.startswith("error: nothing to tune: ")


def test_a_file_without_the_layers_to_compare_is_refused(tmp_path, capsys) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("format: 1\nhidden_size: 32\npattern: A\n")
    assert main(["bench", "m2rnn", "--like", str(path)]) == 1
    assert "a.yaml: mixers: must bind M and R, the layers to compare; missing: ['M', 'R']" in capsys.readouterr().err


def test_where_the_clock_is_not_known_shares_are_left_out(monkeypatch) -> None:
    from types import SimpleNamespace

    from archsearch.throughput import limits

    card = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(limits, "_highest_clock", lambda: None)
    found = limits.limits_of_this_gpu()
    assert (found.flops, found.bytes, found.specials) == (None, 4.8e12, None)
    monkeypatch.setattr(limits, "_highest_clock", lambda: 1.98e9)
    assert limits.limits_of_this_gpu().flops == 4096 * 132 * 1.98e9
