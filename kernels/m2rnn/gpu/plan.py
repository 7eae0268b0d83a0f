"""The rule that picks the kernels, tiles, warps and registers of a shape. Nothing is tuned at run time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

WIDEST = 128  # K and V
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def why_refused(q: Tensor, v: Tensor) -> str | None:
    """Return why these inputs (`q` `[B, T, Nq, K]`, `v` `[B, T, Nv, V]`) rule the kernels out, or None."""
    if v.dtype not in DTYPES:
        return f"its kernels take bfloat16, float16 or float32; got {str(v.dtype).removeprefix('torch.')}"
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return f"its kernels take head dims up to {WIDEST}; got K {q.shape[-1]}, V {v.shape[-1]}"
    if 0 in (*q.shape, *v.shape):
        return f"its kernels take no empty tensors; got q {tuple(q.shape)}, v {tuple(v.shape)}"
    return None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Heads and head sizes: what a compiled kernel depends on."""

    heads: int
    query_heads: int
    key_heads: int
    value_heads: int
    forget_heads: int
    weight_heads: int
    key_head_dim: int
    value_head_dim: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one call runs: BK rows and BV columns of the state per program, a checkpoint every C steps."""

    kernels: str  # "gluon_tile", "gluon_wide" or "triton_recurrent"
    block_rows: int
    block_columns: int
    chunk: int
    forward_warps: int
    backward_warps: int
    backward_registers: int | None = None
    precision: str = "ieee"  # of float32 products in the plain-Triton kernels
    reload_weight: bool = False
    sum_rows: int = 64  # rows of (step, row) per product of the deferred dW
    sum_stages: int = 3

    def row_blocks(self, shape: Shape) -> int:
        return -(-shape.key_head_dim // self.block_rows)

    def padded_rows(self, shape: Shape) -> int:
        return self.row_blocks(shape) * self.block_rows


def make_plan(shape: Shape, dtype: torch.dtype, steps: int) -> Plan:
    """Pick Gluon kernels for bf16, V <= 64 and at least 16 steps, plain Triton otherwise."""
    if dtype == torch.bfloat16 and shape.value_head_dim <= 64 and steps >= 16 and gluon_available():
        if shape.value_head_dim <= 16:
            return _TILE_PLAN
        return _wide_plan(shape)
    return _recurrent_plan(shape, dtype, steps)


_TILE_PLAN = Plan(
    kernels="gluon_tile",
    block_rows=16,
    block_columns=16,
    chunk=16,
    forward_warps=1,
    backward_warps=1,
    backward_registers=255,  # left to itself ptxas takes 168, which serialises the two chains: 10 % slower
)


def _wide_plan(shape: Shape) -> Plan:
    return Plan(
        kernels="gluon_wide",
        block_rows=64,
        block_columns=max(32, _next_power_of_2(shape.value_head_dim)),
        chunk=8,
        forward_warps=4,
        backward_warps=4,
    )


def _recurrent_plan(shape: Shape, dtype: torch.dtype, steps: int) -> Plan:
    columns = max(16, _next_power_of_2(shape.value_head_dim))
    warps = columns // 16  # 8 state elements a lane at any V
    if dtype == torch.float32 and columns == 32:
        warps = 4  # 2 spill
    return Plan(
        kernels="triton_recurrent",
        block_rows=16,
        block_columns=columns,
        chunk=min(128, max(16, _next_power_of_2(int(steps**0.5)))),
        forward_warps=warps,
        backward_warps=8 if dtype == torch.float32 and columns == 64 else warps,  # 4 spill at some head counts
        precision="ieee" if columns <= 32 else "tf32x3",
        reload_weight=dtype == torch.float32 and columns == 128,
        sum_rows=32 if dtype == torch.float32 else 64,
        sum_stages=1 if dtype == torch.float32 else 3,
    )


def _next_power_of_2(x: int) -> int:
    return 1 << (x - 1).bit_length()


@functools.cache
def gluon_available() -> bool:
    """Say whether this Triton has the Gluon API that the kernels use and the GPU is a Hopper (wgmma)."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return False
    try:
        from archsearch.kernels.m2rnn.gpu import gluon_tile_backward, gluon_wide_backward  # noqa: F401
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def shape_of(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor) -> Shape:
    counts = q.shape[2], k.shape[2], v.shape[2], forget.shape[2], weight.shape[0]
    return Shape(
        heads=max(counts),
        query_heads=counts[0],
        key_heads=counts[1],
        value_heads=counts[2],
        forget_heads=counts[3],
        weight_heads=counts[4],
        key_head_dim=q.shape[3],
        value_head_dim=v.shape[3],
    )
