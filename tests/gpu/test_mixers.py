"""Mixers on a CUDA GPU: the reference equals the CPU's, the fast path equals the reference."""

import pytest
import torch

from archsearch import registry
from archsearch.kernels.dispatch import REFERENCE, calls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MIXERS = ["attention", "gated_deltanet", "gated_deltaproduct", "gru", "m2rnn", "mamba2", "rnn"]


def build(name):
    torch.manual_seed(0)
    plugin = registry.get(name)
    return plugin.module(plugin.options(), 128)


def run(mixer, x):
    """Return the output and the gradients of the input and every parameter."""
    x = x.detach().requires_grad_()
    y, _ = mixer(x)
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *mixer.parameters()], weights)]


def error(a, b):
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("name", MIXERS)
def test_the_reference_gives_the_same_on_gpu_and_cpu(name):
    x = torch.randn(2, 200, 128, dtype=torch.float64)
    mixer = build(name).double()
    mixer.backend = REFERENCE
    on_cpu = run(mixer, x)
    on_gpu = run(mixer.cuda(), x.cuda())
    assert max(error(a, b) for a, b in zip(on_gpu, on_cpu, strict=True)) < 1e-9


@pytest.mark.parametrize("name", ["m2rnn", "gated_deltanet", "gated_deltaproduct", "mamba2", "rnn", "gru"])
def test_the_fast_path_runs_in_bf16_and_equals_the_reference(name):
    fast = next(iter(registry.get(name).module.backends.fast))
    if reason := registry.get(name).missing_backends()[fast]:
        pytest.skip(reason)
    x = torch.randn(2, 200, 128, device="cuda", dtype=torch.bfloat16)
    mixer = build(name).cuda().bfloat16()
    calls.clear()
    mixed = run(mixer, x)
    assert calls[registry.get(name).op, fast] == 1
    assert {backend for (_, backend), count in calls.items() if count} == {fast, "triton"}
    mixer.backend = REFERENCE
    exact = run(mixer.double(), x.double())
    assert error(mixed[0], exact[0]) < 2e-2
    assert max(error(a, b) for a, b in zip(mixed[1:], exact[1:], strict=True)) < 6e-2
