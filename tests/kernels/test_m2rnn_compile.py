"""The M²RNN kernels compile for an H100 or H200 without one: they fit its shared memory and spill no registers.

The tests take one shape for each configuration that `plan.py` can pick. `python -m tests.kernels.test_m2rnn_compile`
prints a line per kernel, for these and for more shapes: packed documents, heads that share, padded head dims.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from archsearch.kernels.m2rnn.gpu import plan as plans
from archsearch.kernels.m2rnn.gpu.plan import Plan, Shape

triton = pytest.importorskip("triton", reason="triton has no build for this platform")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set: nothing compiles"),
]

SHARED_MEMORY = 232448  # bytes that one program may have on sm_90
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Hopper:
    """A Triton driver that compiles for sm_90 and cannot launch; its device has kernel caches of its own."""

    def get_current_device(self) -> str:
        return "sm_90, not there"

    def get_current_stream(self, _: str) -> int:
        return 0

    def get_current_target(self) -> object:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


class Case(NamedTuple):
    name: str
    plan: Plan
    shape: Shape
    dtype: torch.dtype
    packed: bool = False


class Usage(NamedTuple):
    registers: int
    stack: int
    shared: int


def shape(heads: int = 84, key: int = 64, value: int = 16, shared_by: int | None = None) -> Shape:
    """Return a shape with one head of q and k, or with other counts for all inputs where `shared_by` is given."""
    own = heads // (shared_by or 1)
    return Shape(
        heads=heads, query_heads=own if shared_by else 1, key_heads=1, value_heads=heads, forget_heads=own,
        weight_heads=own, key_head_dim=key, value_head_dim=value,
    )  # fmt: skip


PUBLISHED = shape()
GLUON = [
    Case("tile-V16", plans._TILE_PLAN, PUBLISHED, BF16),
    *(
        Case(f"wide-V{value}", plans._wide_plan(of), of, BF16)
        for value in (32, 48, 64)
        for of in (shape(heads=21, value=value),)
    ),
]
RECURRENT = [
    Case(f"recurrent-{name}-V{value}", plans._recurrent_plan(of, dtype, 4096), of, dtype)
    for name, dtype in (("bf16", BF16), ("fp16", FP16), ("fp32", FP32))
    for value in (16, 32, 64, 128)
    for of in (shape(heads=4, value=value),)
]
LONG = [  # chunks of 128 steps: the most registers
    Case(f"recurrent-fp32-V{value}-long", plans._recurrent_plan(of, FP32, 100_000), of, FP32)
    for value in (64, 128)
    for of in (shape(heads=6, key=16, value=value, shared_by=3),)
]


@pytest.fixture(autouse=True)
def a_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("case", [*GLUON, *RECURRENT, *LONG], ids=lambda case: case.name)
def test_a_kernel_fits_and_does_not_spill(case: Case, kernel: str) -> None:
    usage = compile_kernel(case, kernel)
    assert usage.stack == 0
    assert usage.shared <= SHARED_MEMORY


@pytest.mark.parametrize("kernel", ["sum_output", "sum_gradients"])
@pytest.mark.parametrize("case", [GLUON[0], RECURRENT[-1]], ids=lambda case: case.name)
def test_a_summing_kernel_fits_and_does_not_spill(case: Case, kernel: str) -> None:
    usage = compile_kernel(case, kernel)
    assert usage.stack == 0
    assert usage.shared <= SHARED_MEMORY


def compile_kernel(case: Case, kernel: str) -> Usage:
    """Compile what a call with an initial state, a gradient and clipping launches."""
    from archsearch.kernels.m2rnn.gpu import launch as launches

    plan, of, dtype, full = case.plan, case.shape, case.dtype, FP32
    documents = torch.int32 if case.packed else full
    where = plan, of, launches.Layout(2, 4096, 8192, case.packed), 0, 4096
    inputs = dtype, dtype, dtype, dtype, full
    if kernel == "forward":
        tensors = *inputs, full, documents, dtype, full, dtype
        launch = launches._forward_launch(*where, tensors, dtype, has_state=True, save=True)
    elif kernel == "backward":
        outputs = dtype, dtype, dtype, full, full, *launches._scratch_dtypes(plan, dtype)
        launch = launches._backward_launch(*where, (*inputs, dtype, documents, dtype, full, *outputs), dtype, 1.0)
    elif kernel == "sum_output":
        launch = launches._sum_output_launch(*where, (dtype, dtype))
    else:
        launch = launches._sum_gradients_launch(*where, (dtype, dtype, dtype, full, dtype, dtype, dtype, full))
    compiled = launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)
    return usage_of(compiled)


def usage_of(compiled: object) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])  # type: ignore[attr-defined]
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK"))
    assert registers, text
    assert stack, text
    return Usage(int(registers[1]), int(stack[1]), compiled.metadata.shared)  # type: ignore[attr-defined]


def more_cases() -> Iterator[Case]:
    """Yield shapes that exercise other branches of the same configurations."""
    yield Case("tile-V16-packed", plans._TILE_PLAN, PUBLISHED, BF16, packed=True)
    for key, value in ((20, 5), (128, 8), (4, 16)):
        of = shape(heads=6, key=key, value=value, shared_by=3)
        yield Case(f"tile-K{key}-V{value}", plans._TILE_PLAN, of, BF16)
    for key, value in ((100, 17), (100, 40), (128, 64), (16, 32), (20, 63)):
        of = shape(heads=6, key=key, value=value, shared_by=3)
        for packed in (False, True):
            yield Case(f"wide-K{key}-V{value}{'-packed' * packed}", plans._wide_plan(of), of, BF16, packed)
    for name, dtype in (("bf16", BF16), ("fp16", FP16), ("fp32", FP32)):
        for key, value, steps in ((128, 128, 1000), (100, 100, 30), (20, 5, 3), (16, 64, 100_000), (128, 33, 300)):
            of = shape(heads=6, key=key, value=value, shared_by=3)
            plan = plans._recurrent_plan(of, dtype, steps)
            yield Case(f"recurrent-{name}-K{key}-V{value}-T{steps}", plan, of, dtype, packed=key == 100)


def main(names: list[str]) -> int:
    """Print registers, spills, shared memory and seconds of every kernel whose name has one of `names`."""
    triton.runtime.driver.set_active(Hopper())
    bad = 0
    for case in (*GLUON, *RECURRENT, *LONG, *more_cases()):
        for kernel in ("forward", "backward", "sum_output", "sum_gradients"):
            label = f"{case.name} {kernel}"
            if names and not any(name in label for name in names):
                continue
            start = time.perf_counter()
            usage = compile_kernel(case, kernel)
            wrong = usage.stack > 0 or usage.shared > SHARED_MEMORY
            bad += wrong
            print(f"{'BAD' if wrong else 'ok '} {label}: {usage}, {time.perf_counter() - start:.1f} s", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
