"""What compiles a GPU's kernels before the first step, run on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch

from archsearch.architecture import small
from archsearch.kernels.dispatch import calls
from archsearch.training import warm_up

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(warm_up, "STEPS", 16)


def architecture(pattern):
    return dataclasses.replace(small().with_pattern(pattern), vocab_size=11)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_each_distinct_layer_runs_forward_and_backward_and_nothing_is_drawn(packed, monkeypatch):
    before, state = dict(calls), torch.get_rng_state()
    gradients = []
    run_once = warm_up._run_once

    def watched(model, *rest):
        run_once(model, *rest)
        gradients.append(all(parameter.grad is not None for parameter in model.parameters()))

    monkeypatch.setattr(warm_up, "_run_once", watched)
    warm_up.compile_kernels(architecture("R3MAR3MA"), CPU, contextlib.nullcontext, packed)
    assert gradients == [True, True, True]
    for op in ("gated_delta_rule", "m2rnn", "attention", "linear_cross_entropy"):
        assert calls[op, "reference"] > before.get((op, "reference"), 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_run_is_left_to_the_run_itself(monkeypatch):
    ran = []

    def broken(model, *_):
        ran.append(model.architecture.pattern)
        raise RuntimeError("no memory")

    monkeypatch.setattr(warm_up, "_run_once", broken)
    warm_up.compile_kernels(architecture("RM"), CPU, contextlib.nullcontext, False)
    assert sorted(ran) == ["M", "R"]
