from __future__ import annotations

import importlib

import pytest
import torch

from archsearch.kernels import dispatch
from archsearch.kernels.dispatch import Backends, calls

ON_GPU = type("OnGpu", (), {"is_cuda": True})()  # stands for a tensor there: the choice reads nothing else


def test_auto_takes_the_first_backend_that_can_run_and_counts_it() -> None:
    backends = Backends("op", {"broken": lambda: "no luck", "quick": lambda: None, "slower": lambda: None})
    before = calls["op", "quick"]
    assert backends.choose("auto", ON_GPU) == "quick"
    assert calls["op", "quick"] == before + 1
    assert backends.choose("auto", ON_GPU, {"quick": "too wide"}) == "slower"
    assert backends.choose("auto", torch.zeros(1)) == "reference"
    assert backends.choose("reference", ON_GPU) == "reference"
    assert backends.missing() == {"broken": "no luck", "quick": None, "slower": None, "reference": None}


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("broken", ON_GPU, "op: backend 'broken' cannot be used: no luck"),
        ("quick", torch.zeros(1), "op: backend 'quick' cannot be used: its inputs are not on a GPU"),
        ("other", ON_GPU, "op: unknown backend 'other'; known: auto, broken, quick, reference"),
    ],
)
def test_a_backend_asked_for_by_name_runs_or_is_an_error(name: str, tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Backends("op", {"broken": lambda: "no luck", "quick": lambda: None}).choose(name, tensor)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda _: None)
    assert "triton is not installed" in (dispatch.why_no_triton() or "")
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert dispatch.why_no_triton() is None


def test_a_machine_without_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert dispatch.why_no_triton() == "no CUDA GPU"


def test_the_choice_breaks_no_graph_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo = importlib.import_module("torch._dynamo")  # before its own look for packages is replaced

    def find_spec(_: str) -> None:
        dynamo.graph_break()  # as the real one is to the torch.compile of some releases

    monkeypatch.setattr(dispatch.importlib.util, "find_spec", find_spec)
    reasons = {"ampere": dispatch.why_no_ampere, "triton": dispatch.why_no_triton}
    backends = Backends("op", reasons)

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x if backends.choose("auto", x) == "reference" else x

    dynamo.reset()
    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1)).item() == 2
