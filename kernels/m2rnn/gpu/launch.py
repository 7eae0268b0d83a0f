"""Launch the kernels, one time segment after the other, so that partial sums never need more than a part of memory.

`_forward_launch`, `_sum_output_launch`, `_backward_launch` and `_sum_gradients_launch` build the arguments of every
launch, of those that only compile too: so both ask for the same kernels.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from archsearch.kernels.m2rnn.gpu import triton_recurrent_backward, triton_recurrent_forward
from archsearch.kernels.m2rnn.gpu.compile_ahead import Launch, Operand, compile_side_by_side
from archsearch.kernels.m2rnn.gpu.plan import Plan, Shape, make_plan, shape_of
from archsearch.kernels.m2rnn.gpu.triton_sum_parts import sum_gradients_kernel, sum_output_kernel

_SUM_TILE = 8192  # elements a program of the summing pass holds
_Other = TypeVar("_Other")
_compiled: set[Hashable] = set()  # what has gone through _compile_ahead in this process


class Layout(NamedTuple):
    """Where the sequences lie: equal ones of `steps`, or documents (`packed`) with `steps` rows in all."""

    sequences: int
    steps: int
    rows: int
    packed: bool


def layout_of(q: Tensor, cu_seqlens: Tensor | None) -> Layout:
    if cu_seqlens is None:
        return Layout(q.shape[0], q.shape[1], q.shape[0] * q.shape[1], False)
    return Layout(cu_seqlens.numel() - 1, q.shape[1], q.shape[1], True)


def plan_of(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, layout: Layout) -> Plan:
    return make_plan(shape_of(q, k, v, weight, forget), v.dtype, layout.steps)


def checkpoint_shape(plan: Plan, shape: Shape, layout: Layout) -> tuple[int, ...]:
    if layout.packed:
        chunks = layout.rows // plan.chunk + layout.sequences
    else:
        chunks = layout.sequences * -(-layout.steps // plan.chunk)
    return chunks, shape.heads, plan.padded_rows(shape) * plan.block_columns


def bits_dtype(dtype: torch.dtype) -> torch.dtype:
    """Checkpoints leave the op as integers: autograd then asks for no gradient of them."""
    return torch.int32 if dtype == torch.float32 else torch.int16


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None, *, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y [B, T, N, V], the final state [sequences, N, K, V] and the checkpoints (as integers).

    `save` announces a backward pass with this `gradient_clip`: the first time, its kernels are compiled here too.
    """
    shape, layout = shape_of(q, k, v, weight, forget), layout_of(q, cu_seqlens)
    plan = plan_of(q, k, v, weight, forget, layout)
    blocks, heads, width = plan.row_blocks(shape), shape.heads, shape.value_head_dim
    y = v.new_empty(q.shape[0], q.shape[1], heads, width)
    state = v.new_empty(layout.sequences, heads, shape.key_head_dim, width, dtype=torch.float32)
    saved = v.new_empty(checkpoint_shape(plan, shape, layout) if save else (0,))
    row_bytes = blocks * heads * width * v.element_size()
    state_in = initial_state
    segments = list(_segments(plan, layout, row_bytes if blocks > 1 else 0, _budget(shape, layout, v)))
    _compile_ahead(
        plan, shape, layout, (q, k, v, weight, forget), initial_state, cu_seqlens, gradient_clip,
        save=save, segments=len(segments),
    )  # fmt: skip
    parts = v.new_empty(blocks * _rows(layout, segments[0][1]) * heads * width) if blocks > 1 else y
    for begin, length in segments:
        _forward_launch(
            plan, shape, layout, begin, length,
            (
                q, k, v, weight, forget, state if state_in is None else state_in, _or(cu_seqlens, forget),
                parts, state, saved,
            ),
            v.dtype, has_state=state_in is not None, save=save,
        ).run()  # fmt: skip
        if blocks > 1:
            _sum_output_launch(plan, shape, layout, begin, length, (parts, y)).run()
        state_in = state
    return y, state, saved.view(bits_dtype(v.dtype))


def run_backward(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, saved: Tensor, cu_seqlens: Tensor | None,
    dy: Tensor, dstate: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v, weight, forget and the initial state (float32)."""
    shape, layout = shape_of(q, k, v, weight, forget), layout_of(q, cu_seqlens)
    plan = plan_of(q, k, v, weight, forget, layout)
    blocks, heads, width = plan.row_blocks(shape), shape.heads, shape.value_head_dim
    padded, sequences = plan.padded_rows(shape), layout.sequences
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    df = torch.empty_like(forget)
    state_shape = sequences, heads, shape.key_head_dim, width
    carry = v.new_zeros(state_shape, dtype=torch.float32) if dstate is None else dstate.clone()
    dw_parts = v.new_zeros(sequences, heads, blocks, width, width, dtype=torch.float32)
    scratch_shape = sequences * heads * blocks, plan.chunk, plan.block_rows * plan.block_columns
    scratch = tuple(v.new_empty(scratch_shape, dtype=dtype) for dtype in _scratch_dtypes(plan, v.dtype))
    saved = saved.view(v.dtype)
    row_bytes = heads * (2 * padded + blocks * width) * v.element_size() + blocks * heads * 4
    segments = list(_segments(plan, layout, row_bytes, _budget(shape, layout, v)))
    longest = _rows(layout, segments[0][1])  # the kernels index these as [blocks,] rows of the segment, heads, width
    dq_heads, dk_heads = v.new_empty(longest * heads * padded), v.new_empty(longest * heads * padded)
    dv_parts = v.new_empty(blocks * longest * heads * width)
    df_parts = v.new_empty(blocks * longest * heads, dtype=torch.float32)
    for begin, length in reversed(segments):
        _backward_launch(
            plan, shape, layout, begin, length,
            (
                q, k, v, weight, forget, saved, _or(cu_seqlens, forget), dy, carry,
                dq_heads, dk_heads, dv_parts, df_parts, dw_parts, *scratch,
            ),
            v.dtype, gradient_clip,
        ).run()  # fmt: skip
        _sum_gradients_launch(
            plan, shape, layout, begin, length, (dq_heads, dk_heads, dv_parts, df_parts, dq, dk, dv, df)
        ).run()
    group = heads // shape.weight_heads
    dw = dw_parts.view(sequences, shape.weight_heads, group * blocks, width, width).sum((0, 2)).to(weight.dtype)
    return dq, dk, dv, dw, df, carry


def _compile_ahead(
    plan: Plan, shape: Shape, layout: Layout, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None, *, save: bool, segments: int,
) -> None:  # fmt: skip
    """Compile what a call will launch, its backward pass included, unless this process has."""
    v, forget = inputs[2], inputs[4]
    first_has_state, many = initial_state is not None, segments > 1
    key = plan, shape, layout.packed, v.dtype, v.device, first_has_state, many, gradient_clip is None, save
    if key in _compiled:
        return
    _compiled.add(key)
    low, full = v.dtype, torch.float32
    documents = _or(cu_seqlens, forget)
    segment = plan, shape, layout, 0, layout.steps  # where it lies in time does not enter a kernel
    launches = [
        _forward_launch(
            *segment, (*inputs, _or(initial_state, full) if first else full, documents, low, full, low), low,
            has_state=first_has_state if first else True, save=save,
        )
        for first in ((True, False) if many and not first_has_state else (True,))
    ]  # fmt: skip
    if plan.row_blocks(shape) > 1:
        launches.append(_sum_output_launch(*segment, (low, low)))
    if save:
        tensors: tuple[Operand, ...]
        tensors = *inputs, low, documents, low, full, low, low, low, full, full, *_scratch_dtypes(plan, low)
        launches.append(_backward_launch(*segment, tensors, low, gradient_clip))
        launches.append(_sum_gradients_launch(*segment, (low, low, low, full, low, low, low, full)))
    compile_side_by_side(launches)


def _forward_launch(
    plan: Plan, shape: Shape, layout: Layout, begin: int, length: int, tensors: tuple[Operand, ...],
    dtype: torch.dtype, *, has_state: bool, save: bool,
) -> Launch:  # fmt: skip
    grid = layout.sequences * shape.heads, plan.row_blocks(shape)
    arguments = *tensors, layout.steps, begin, length, _rows(layout, length), *_constants(shape)
    options: dict[str, Any] = {
        "HAS_STATE": has_state, "SAVE": save, "VARLEN": layout.packed, "num_warps": plan.forward_warps,
    }  # fmt: skip
    if plan.kernels != "triton_recurrent":
        columns = () if plan.kernels == "gluon_tile" else (plan.block_columns,)
        return Launch(_gluon(plan, "forward").forward_kernel, grid, (*arguments, *columns), options)
    options |= {
        "BK": plan.block_rows, "BV": plan.block_columns, "C": plan.chunk, "FAST": dtype != torch.float32,
        "PRECISION": plan.precision,
    }  # fmt: skip
    return Launch(triton_recurrent_forward.forward_kernel, grid, arguments, options)


def _sum_output_launch(
    plan: Plan, shape: Shape, layout: Layout, begin: int, length: int, tensors: tuple[Operand, Operand]
) -> Launch:
    """Sum the first tensor's [blocks, rows, heads, V] into y, the second."""
    rows, heads, width = _rows(layout, length), shape.heads, shape.value_head_dim
    tile = _heads_a_tile(heads, width)
    arguments = (
        *tensors, rows, layout.steps, begin, length, layout.packed, plan.row_blocks(shape), heads, width, tile
    )  # fmt: skip
    return Launch(sum_output_kernel, (rows, -(-heads // tile)), arguments, {"num_warps": 4})


def _backward_launch(
    plan: Plan, shape: Shape, layout: Layout, begin: int, length: int, tensors: tuple[Operand, ...],
    dtype: torch.dtype, gradient_clip: float | None,
) -> Launch:  # fmt: skip
    grid = layout.sequences * shape.heads, plan.row_blocks(shape)
    bound = 0.0 if gradient_clip is None else float(gradient_clip)
    arguments = *tensors, bound, layout.steps, begin, length, _rows(layout, length), *_constants(shape)
    options: dict[str, Any] = {
        "CLIP": gradient_clip is not None, "VARLEN": layout.packed, "num_warps": plan.backward_warps,
    }  # fmt: skip
    if plan.backward_registers is not None:
        options["maxnreg"] = plan.backward_registers
    if plan.kernels != "triton_recurrent":
        columns = () if plan.kernels == "gluon_tile" else (plan.block_columns,)
        return Launch(_gluon(plan, "backward").backward_kernel, grid, (*arguments, *columns), options)
    options |= {
        "BK": plan.block_rows, "BV": plan.block_columns, "C": plan.chunk, "FAST": dtype != torch.float32,
        "PRECISION": plan.precision, "RELOAD": plan.reload_weight, "num_stages": 1 if plan.reload_weight else 3,
        "SUM_ROWS": plan.sum_rows, "SUM_STAGES": plan.sum_stages,
    }  # fmt: skip
    return Launch(triton_recurrent_backward.backward_kernel, grid, arguments, options)


def _sum_gradients_launch(
    plan: Plan, shape: Shape, layout: Layout, begin: int, length: int, tensors: tuple[Operand, ...]
) -> Launch:
    padded, rows = plan.padded_rows(shape), _rows(layout, length)
    sources = (
        (shape.query_heads, padded), (shape.key_heads, padded),
        (shape.value_heads, shape.value_head_dim), (shape.forget_heads, 1),
    )  # fmt: skip
    tiles = tuple(_heads_a_tile(count, width * (shape.heads // count)) for count, width in sources)
    jobs = sum(-(-count // tile) for (count, _), tile in zip(sources, tiles, strict=True))
    arguments = (
        *tensors, rows, layout.steps, begin, length, layout.packed, plan.row_blocks(shape), shape.heads,
        shape.query_heads, shape.key_heads, shape.value_heads, shape.forget_heads,
        shape.key_head_dim, padded, shape.value_head_dim, *tiles, plan.kernels != "triton_recurrent",
    )  # fmt: skip
    return Launch(sum_gradients_kernel, (rows, jobs), arguments, {"num_warps": 4})


def _scratch_dtypes(plan: Plan, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the types of the states and of D of a chunk, where they do not stay in shared memory."""
    if plan.kernels != "triton_recurrent":
        return ()
    return dtype, torch.float32 if dtype == torch.float32 else torch.bfloat16  # float16 would underflow


def _gluon(plan: Plan, direction: str) -> ModuleType:
    return importlib.import_module(f".{plan.kernels}_{direction}", __package__)  # only where this Triton has Gluon


def _segments(plan: Plan, layout: Layout, row_bytes: int, budget: int) -> Iterator[tuple[int, int]]:
    """Cut time so that the partial sums of a segment fit the budget; packed documents run as one segment."""
    length = layout.steps
    if not layout.packed and row_bytes * layout.rows > budget:
        fitting = budget // (row_bytes * layout.sequences)
        unit = plan.chunk
        length = max(unit, -(-layout.steps // max(1, -(-layout.steps // max(1, fitting)))) // unit * unit)
    for begin in range(0, layout.steps, length):
        yield begin, min(length, layout.steps - begin)


def _rows(layout: Layout, length: int) -> int:
    return layout.rows if layout.packed else layout.sequences * length


def _budget(shape: Shape, layout: Layout, v: Tensor) -> int:
    """Return the bytes for partial sums: as much as y and dv together plus a third, at least 32 MiB."""
    return max(32 << 20, layout.rows * shape.heads * shape.value_head_dim * v.element_size() * 4 // 3)


def _heads_a_tile(heads: int, width: int) -> int:
    """Return a power of two of heads whose values fill one program of the summing pass."""
    block = 1
    while block < heads and 2 * block * width <= _SUM_TILE:
        block *= 2
    return block


def _constants(shape: Shape) -> tuple[int, ...]:
    return (
        shape.heads, shape.query_heads, shape.key_heads, shape.value_heads, shape.forget_heads, shape.weight_heads,
        shape.key_head_dim, shape.value_head_dim,
    )  # fmt: skip


def _or(x: Tensor | None, other: _Other) -> Tensor | _Other:
    return other if x is None else x
