"""The M²RNN kernels compile for an H100 or H200 without one: they fit its shared memory and spill no registers."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

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
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
BF16, FP32 = torch.bfloat16, torch.float32


def shape(heads: int = 84, key: int = 64, value: int = 16) -> Shape:
    return Shape(
        heads=heads, query_heads=1, key_heads=1, value_heads=heads, forget_heads=heads, weight_heads=heads,
        key_head_dim=key, value_head_dim=value,
    )  # fmt: skip


PUBLISHED, SQUARE, HALF = shape(), shape(heads=21, value=64), shape(heads=21, value=32)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("plan", "of", "dtype"),
    [
        pytest.param(plans._tile_plan(PUBLISHED, 8, 132), PUBLISHED, BF16, id="tile-V16"),
        pytest.param(plans._wide_plan(HALF), HALF, BF16, id="wide-V32"),
        pytest.param(plans._recurrent_plan(PUBLISHED, BF16, 4096), PUBLISHED, BF16, id="recurrent-bf16-V16"),
        pytest.param(plans._recurrent_plan(PUBLISHED, FP32, 4096), PUBLISHED, FP32, id="recurrent-fp32-V16"),
    ],
)
def test_a_kernel_fits(plan: Plan, of: Shape, dtype: torch.dtype, direction: str) -> None:
    assert compile_kernel(plan, of, dtype, direction) == 0


def test_the_wide_forward_kernel_of_a_square_state_fits() -> None:
    assert compile_kernel(plans._wide_plan(SQUARE), SQUARE, BF16, "forward") == 0  # the backward is known to spill


def compile_kernel(plan: Plan, of: Shape, dtype: torch.dtype, direction: str) -> int:
    """Compile with every feature on; return the bytes of spilled registers. Fails where shared memory overflows."""
    kernel = getattr(module_of(plan, direction), f"{direction}_kernel")
    constants = {
        "N": of.heads, "NQ": of.query_heads, "NK": of.key_heads, "NV": of.value_heads, "NF": of.forget_heads,
        "NW": of.weight_heads, "K": of.key_head_dim, "V": of.value_head_dim, "BK": plan.block_rows,
        "BV": plan.block_columns, "C": plan.chunk, "HAS_STATE": True, "SAVE": True, "VARLEN": False, "CLIP": True,
        "FAST": dtype != torch.float32, "PRECISION": plan.precision, "RELOAD": plan.reload_weight,
        "SUM_ROWS": plan.sum_rows, "SUM_STAGES": plan.sum_stages,
    }  # fmt: skip
    low = ("q", "k", "v", "w", "y_parts", "checkpoints", "dy", "dq_heads", "dk_heads", "dv_parts", "h_scratch")
    types = dict.fromkeys(low, "*" + NAMES[dtype])
    types |= dict.fromkeys(("f", "state_in", "state_out", "carry", "df_parts", "dw_parts"), "*fp32")
    types |= dict.fromkeys(("T", "t_begin", "t_len", "rows_total"), "i32")
    types |= {"cu_seqlens": "*i32", "clip": "fp32", "bound": "fp32"}
    types["d_scratch"] = "*fp32" if dtype == torch.float32 else "*bf16"
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = source_class(plan)(kernel, signature, {n: c for n, c in constants.items() if n in names}, aligned)
    options: dict[str, Any] = {"num_warps": getattr(plan, f"{direction}_warps")}
    if registers := getattr(plan, f"{direction}_registers"):
        options["maxnreg"] = registers
    compiled = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32), options=options)
    assert compiled.metadata.shared <= SHARED_MEMORY
    return stack_bytes(compiled.asm["cubin"])


def module_of(plan: Plan, direction: str) -> ModuleType:
    return importlib.import_module(f"archsearch.kernels.m2rnn.gpu.{plan.kernels}_{direction}")


def source_class(plan: Plan) -> Any:
    if plan.kernels == "triton_recurrent":
        return triton.compiler.ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def stack_bytes(cubin: bytes) -> int:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])
