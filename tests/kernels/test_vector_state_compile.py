"""The kernels of the vector states compile for an H100 or H200 without one, and spill no registers.

The ops run on CPU tensors, and where a kernel would be launched it is compiled, with the very arguments of the launch.
`python -m tests.kernels.test_vector_state_compile` prints a line per kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton has no build for this platform")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set: nothing compiles"),
]
if os.environ.get("TRITON_INTERPRET") != "1":
    from tests.kernels.test_m2rnn_compile import SHARED_MEMORY, Hopper, Usage, usage_of
    from tests.kernels.vector_cases import PARTS, Case, errors

    CASES = [
        Case(op=op, steps=2, heads=3, head_dim=head_dim, clip=1.0, state=head_dim == 16, dtype=dtype)
        for op in PARTS
        for dtype, head_dim in ((torch.bfloat16, 16), (torch.bfloat16, 64), (torch.float32, 16))
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{str(case.dtype)[6:]}-D{case.head_dim}")
def test_the_kernels_fit_and_do_not_spill(case: Case) -> None:
    with compiled_only() as kernels:
        errors(case, "cpu")
    assert len(kernels) == {"rnn": 3, "gru": 4}[case.op]
    for name, compiled in kernels.items():
        usage = usage_of(compiled)
        assert usage.stack == 0, name
        assert usage.shared <= SHARED_MEMORY, name


@contextmanager
def compiled_only() -> Iterator[dict[str, Any]]:
    """Compile kernels where they would be launched; gives them by name."""
    kernels: dict[str, Any] = {}

    def compile_alone(kernel: Any, *arguments: Any, grid: Any, **options: Any) -> Any:
        compiled = run(kernel, *arguments, grid=grid, **{**options, "warmup": True})
        kernels[kernel.fn.__name__] = compiled
        return compiled

    run, active = triton.JITFunction.run, triton.runtime.driver._active
    triton.JITFunction.run, triton.runtime.driver._active = compile_alone, Hopper()
    try:
        yield kernels
    finally:
        triton.JITFunction.run, triton.runtime.driver._active = run, active


def main() -> int:
    """Print registers, spills and shared memory of every kernel."""
    bad = 0
    for case in CASES:
        with compiled_only() as kernels:
            errors(case, "cpu")
        for name, compiled in kernels.items():
            usage: Usage = usage_of(compiled)
            bad += usage.stack > 0
            print("BAD" if usage.stack else "ok ", case.dtype, f"D{case.head_dim}", name, usage, flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
