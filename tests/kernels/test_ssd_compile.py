"""The state-space kernels compile for an H100 or H200 without one: they fit its shared memory and spill no registers.

`python -m tests.kernels.test_ssd_compile` prints a line per kernel, for more shapes than the tests take.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton has no build for this platform")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set: nothing compiles"),
]

SHARED_MEMORY = 232448  # bytes that one program may have on sm_90
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
KERNELS = {
    "sum_decays_kernel", "scale_kernel", "carry_states_kernel", "output_kernel", "carry_gradients_kernel",
    "gradient_kernel", "decay_gradient_kernel",
}  # fmt: skip


class Hopper:
    """A Triton driver that compiles for sm_90 and cannot launch; its device has kernel caches of its own."""

    def get_current_device(self) -> str:
        return "sm_90, not there"

    def get_current_stream(self, _: str) -> int:
        return 0

    def get_current_target(self) -> object:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


class Case(NamedTuple):
    heads: int
    head_dim: int
    state_dim: int
    groups: int = 1
    dtype: torch.dtype = torch.bfloat16
    packed: bool = False
    state: bool = False
    steps: int = 128


class Usage(NamedTuple):
    registers: int
    stack: int
    shared: int


TESTED = [Case(64, 19, 216), Case(32, 64, 192, state=True)]
MORE = [
    Case(64, 64, 128, groups=8),
    Case(8, 32, 64, groups=2, packed=True),
    Case(64, 19, 216, packed=True),
    Case(64, 19, 216, dtype=torch.float16, steps=130),
    Case(4, 128, 64, state=True),
    Case(4, 100, 33, state=True, steps=100),
    Case(1, 1, 1),
]


@pytest.mark.parametrize("case", TESTED, ids=str)
def test_the_kernels_of_a_step_fit_and_do_not_spill(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    found = compile_kernels(case)
    assert set(found) == KERNELS
    assert {name for name, usage in found.items() if usage.stack > 0} == set()
    assert max(usage.shared for usage in found.values()) <= SHARED_MEMORY


def compile_kernels(case: Case) -> dict[str, Usage]:
    """Compile what a forward and a backward pass launch; the matrix products between the launches run on the CPU."""
    from archsearch.kernels.ssd.gpu.launch import run_backward, run_forward

    steps, heads = case.steps, case.heads
    x = torch.zeros(1, steps, heads, case.head_dim, dtype=case.dtype)
    dt, shared = torch.zeros(1, steps, heads), torch.zeros(1, steps, case.groups, case.state_dim, dtype=case.dtype)
    state = torch.zeros(1, heads, case.state_dim, case.head_dim) if case.state else None
    given = x, dt, dt, shared, shared, state, torch.zeros(steps, dtype=torch.int32) if case.packed else None
    with compiling_only() as found:
        _, final = run_forward(*given, keep_state=case.state)
        run_backward(*given, x, final if case.state else None)
    return found


@contextmanager
def compiling_only() -> Iterator[dict[str, Usage]]:
    """Within, a launch compiles its kernel and does not run it; returns what each takes."""
    launch, found = triton.runtime.JITFunction.run, {}

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        found[kernel.fn.__name__] = usage_of(launch(kernel, *args, **{**options, "warmup": True}))

    triton.runtime.JITFunction.run = run
    try:
        yield found
    finally:
        triton.runtime.JITFunction.run = launch


def usage_of(compiled: Any) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK"))
    assert registers, text
    assert stack, text
    return Usage(int(registers[1]), int(stack[1]), compiled.metadata.shared)


def main() -> int:
    """Print registers, spills and shared memory of every kernel and case."""
    triton.runtime.driver.set_active(Hopper())
    bad = 0
    for case in (*TESTED, *MORE):
        for name, usage in compile_kernels(case).items():
            wrong = usage.stack > 0 or usage.shared > SHARED_MEMORY
            bad += wrong
            print(f"{'BAD' if wrong else 'ok '} {case} {name}: {usage}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
