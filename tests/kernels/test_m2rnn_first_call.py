"""The first call of the M²RNN kernels compiles them side by side, and imports nothing that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="triton has no build for this platform")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set: nothing compiles"
)

Compilations = list[tuple[str, str]]  # kernel, name of the thread


class Hopper:
    """A Triton driver with a device of its own; its kernels do nothing."""

    def __init__(self) -> None:
        self.devices: list[object] = []

    def get_current_device(self) -> object:
        return id(self)

    def set_current_device(self, device: object) -> None:
        self.devices.append(device)

    def get_current_stream(self, _: object) -> int:
        return 0

    def get_current_target(self) -> object:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


class Nothing:
    """A compiled kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None: ...
    def run(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Hopper:
    from archsearch.kernels.m2rnn.gpu import launch, plan

    driver = Hopper()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(launch, "_compiled", set())
    monkeypatch.setattr(plan, "gluon_available", lambda: True)
    return driver


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """Record what would be compiled instead of compiling it."""
    found: Compilations = []

    def record(self: Any, key: object, _signature: object, device: object, *_: object) -> Nothing:
        found.append((self.fn.__module__.split(".")[-1] + "." + self.fn.__name__, threading.current_thread().name))
        self.device_caches[device][0][key] = Nothing()
        return self.device_caches[device][0][key]  # type: ignore[no-any-return]

    monkeypatch.setattr(triton.runtime.JITFunction, "_do_compile", record)
    return found


def inputs(dtype: torch.dtype, value: int, steps: int = 64) -> list[Tensor]:
    """Return q, k, v, weight and forget for 2 sequences, 3 heads, K 32."""
    q, k, v = (torch.zeros(2, steps, heads, size, dtype=dtype) for heads, size in ((1, 32), (1, 32), (3, value)))
    return [q, k, v, torch.zeros(3, value, value, dtype=dtype), torch.zeros(2, steps, 3)]


def forward_and_backward(
    values: list[Tensor], state: Tensor | None = None, cu_seqlens: Tensor | None = None, clip: float | None = 1.0
) -> None:
    from archsearch.kernels.m2rnn.gpu.launch import run_backward, run_forward

    q, k, v, weight, forget = values
    y, final, saved = run_forward(q, k, v, weight, forget, state, cu_seqlens, clip, save=True)
    dy, dfinal = torch.zeros_like(y), torch.zeros_like(final)
    run_backward(q, k, v, weight, forget, saved, cu_seqlens, dy, dfinal, clip)


CALLS: dict[str, Callable[[], None]] = {
    "tile": lambda: forward_and_backward(inputs(torch.bfloat16, 16)),
    "wide with a state": lambda: forward_and_backward(inputs(torch.bfloat16, 40), torch.zeros(2, 3, 32, 40)),
    "recurrent": lambda: forward_and_backward(inputs(torch.float32, 128), clip=None),
    "packed": lambda: forward_and_backward(
        [x if i == 3 else x[:1] for i, x in enumerate(inputs(torch.bfloat16, 16))],
        cu_seqlens=torch.tensor([0, 60, 64], dtype=torch.int32),
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_kernel_of_forward_and_backward_compiles_in_a_thread(
    call: Callable[[], None], compilations: Compilations, driver: Hopper
) -> None:
    call()
    kernels = [kernel.split(".")[-1] for kernel, _ in compilations]
    expected = {"forward_kernel", "backward_kernel", "sum_gradients_kernel"}
    assert set(kernels) - {"sum_output_kernel"} == expected
    assert len(kernels) == len(set(kernels))
    assert all(thread.startswith("m2rnn-compile") for _, thread in compilations), compilations
    assert set(driver.devices) == {id(driver)}
    call()
    assert len(compilations) == len(kernels)


def test_both_forward_kernels_of_time_segments_compile_ahead(
    compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    from archsearch.kernels.m2rnn.gpu import launch

    monkeypatch.setattr(launch, "_budget", lambda *_: 1 << 12)
    forward_and_backward(inputs(torch.bfloat16, 16))
    assert sorted(kernel for kernel, _ in compilations) == [
        "gluon_tile_backward.backward_kernel",
        "gluon_tile_forward.forward_kernel",  # from zeros
        "gluon_tile_forward.forward_kernel",  # from the last segment's state
        "triton_sum_parts.sum_gradients_kernel",
        "triton_sum_parts.sum_output_kernel",
    ]
    assert all(thread.startswith("m2rnn-compile") for _, thread in compilations), compilations


def test_a_failure_in_a_thread_surfaces_at_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def fail(*_: object) -> None:
        threads.append(threading.current_thread())
        raise RuntimeError("ptxas is not there")

    monkeypatch.setattr(triton.runtime.JITFunction, "_do_compile", fail)
    with pytest.raises(RuntimeError, match="ptxas is not there"):
        forward_and_backward(inputs(torch.bfloat16, 16))
    assert threads[-1] is threading.main_thread()
    assert len(threads) == 5


def test_the_first_call_does_not_import_dynamo() -> None:
    code = """
import sys, torch
from archsearch.kernels.m2rnn.gpu import custom_op

custom_op.run_forward = lambda q, k, v, *_, save: (v + 0, torch.zeros(1, 1, 8, 8), torch.zeros(9, dtype=torch.int16))
custom_op.run_backward = lambda q, k, v, w, f, *_: (q + 1, k + 1, v + 1, w + 1, f + 1, torch.zeros(1, 1, 8, 8))
q, w = torch.ones(1, 4, 1, 8, requires_grad=True), torch.ones(1, 8, 8)
y, _ = custom_op.m2rnn_triton(q, q.detach(), q.detach(), w, torch.ones(1, 4, 1))
print(torch.autograd.grad(y.sum(), q)[0].mean().item(), "torch._dynamo" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["2.0", "False"]
