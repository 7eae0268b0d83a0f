"""The vector GRU as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.gru.gpu.triton_backward import gru_backward_kernel
from archsearch.kernels.gru.gpu.triton_forward import gru_forward_kernel
from archsearch.kernels.gru.gpu.triton_gates import gru_gates_kernel
from archsearch.kernels.library import define_op
from archsearch.kernels.rnn.gpu.launch import (
    documents_by_step,
    layout_of,
    sum_heads,
    tensor_or,
    weight_gradient,
)
from archsearch.kernels.strides import rows_side_by_side

_TILE = 2048  # elements of one head whose gates a program computes, in at most 64 steps


def gru_triton(
    x: Tensor, forget: Tensor, reset: Tensor, weight: Tensor, forget_weight: Tensor, reset_weight: Tensor,
    initial_state: Tensor | None = None, gradient_clip: float | None = None, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `gru` does, which checks the inputs; the same bits in every run.

    All sums and states are float32, but the gradient takes the states as y, rounded, holds them: in bfloat16 an error
    of at most 2e-3 of its norm. The gates are computed again from those, and held in 16 bits where y is bfloat16.
    """
    inputs, weights = (x, forget, reset), (weight, forget_weight, reset_weight)
    initial_state = None if initial_state is None else initial_state.float().contiguous()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(x.device).contiguous()
    y, final = _forward(
        *map(rows_side_by_side, inputs), *(part.contiguous() for part in weights),
        initial_state, cu_seqlens, gradient_clip,
    )  # fmt: skip
    return y, final


@define_op("gru_forward")
def _forward(
    x: Tensor, forget: Tensor, reset: Tensor, weight: Tensor, forget_weight: Tensor, reset_weight: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    inputs, weights = (x, forget, reset), (weight, forget_weight, reset_weight)
    layout = layout_of(x, _heads(inputs, weights), cu_seqlens)
    y = x.new_empty(layout.shape)
    final = x.new_empty(layout.state_shape, dtype=torch.float32)
    grid, constants = layout.program(weights=3)
    gru_forward_kernel[grid](
        *inputs, *weights, tensor_or(initial_state, final), tensor_or(cu_seqlens, final), y, final,
        layout.steps, *_strides(inputs), **_counts(inputs), **_weight_counts(weights),
        HAS_STATE=initial_state is not None, FAST=x.dtype == torch.bfloat16, **constants,
    )  # fmt: skip
    return y, final


@_forward.register_fake
def _(
    x: Tensor, forget: Tensor, reset: Tensor, weight: Tensor, forget_weight: Tensor, reset_weight: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    layout = layout_of(x, _heads((x, forget, reset), (weight, forget_weight, reset_weight)), cu_seqlens)
    return x.new_empty(layout.shape), x.new_empty(layout.state_shape, dtype=torch.float32)


@define_op("gru_backward")
def _backward(
    x: Tensor, forget: Tensor, reset: Tensor, weight: Tensor, forget_weight: Tensor, reset_weight: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, y: Tensor, dy: Tensor,
    dfinal: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs, weights = (x, forget, reset), (weight, forget_weight, reset_weight)
    layout = layout_of(y, y.shape[2], cu_seqlens)
    documents = documents_by_step(cu_seqlens, layout.steps)
    gates = _gates(inputs, weights, initial_state, cu_seqlens, documents, y)

    dx, df, dr = (part.new_empty(layout.shape) for part in inputs)
    dinitial = y.new_empty(layout.state_shape, dtype=torch.float32)
    grid, constants = layout.program(weights=3)
    gru_backward_kernel[grid](
        *weights, tensor_or(cu_seqlens, y), *gates, dy, tensor_or(dfinal, dinitial), dx, df, dr, dinitial,
        gradient_clip or 0.0, layout.steps, **_weight_counts(weights), HAS_FINAL=dfinal is not None,
        CLIP=gradient_clip is not None, **constants,
    )  # fmt: skip
    resets = gates[1]
    dw, dfw, drw = (
        weight_gradient(layout, y, initial_state, cu_seqlens, documents, factor, d, part)
        for factor, d, part in ((resets, dx, weight), (None, df, forget_weight), (None, dr, reset_weight))
    )
    dx, df, dr = (sum_heads(d, part.shape[2]) for d, part in zip((dx, df, dr), inputs, strict=True))
    return dx, df, dr, dw, dfw, drw, dinitial


@_backward.register_fake
def _(
    x: Tensor, forget: Tensor, reset: Tensor, weight: Tensor, forget_weight: Tensor, reset_weight: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, y: Tensor, dy: Tensor,
    dfinal: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    layout = layout_of(y, y.shape[2], cu_seqlens)
    dx, df, dr = (part.new_empty(part.shape) for part in (x, forget, reset))
    dw, dfw, drw = (part.new_empty(part.shape) for part in (weight, forget_weight, reset_weight))
    return dx, df, dr, dw, dfw, drw, y.new_empty(layout.state_shape, dtype=torch.float32)


def _gates(
    inputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], initial_state: Tensor | None, cu_seqlens: Tensor | None,
    documents: Tensor | None, y: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return what `gru_gates_kernel` stores, each `[B, T, N, D]`."""
    rows, steps, heads, head_dim = y.shape
    layout = layout_of(y, heads, cu_seqlens)
    tile = min(64, _TILE // layout.block)
    dtype = torch.float16 if y.dtype == torch.bfloat16 else torch.float32  # 3 bits more than bfloat16, which compound
    gates = y.new_empty(5, *y.shape, dtype=dtype).unbind()
    gru_gates_kernel[(rows * -(-steps // tile) * heads,)](
        *inputs, *weights, y, tensor_or(initial_state, y), tensor_or(cu_seqlens, y), tensor_or(documents, y),
        *gates, steps, *_strides(inputs), N=heads, D=head_dim, BD=layout.block, BT=tile,
        **_counts(inputs), **_weight_counts(weights), HAS_STATE=initial_state is not None,
        PACKED=layout.packed, num_warps=4,
    )  # fmt: skip
    return gates


def _heads(inputs: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> int:
    return max(*(part.shape[2] for part in inputs), *(part.shape[0] for part in weights))


def _strides(inputs: tuple[Tensor, ...]) -> list[int]:
    """Return the strides between rows and between steps of each input."""
    return [stride for part in inputs for stride in part.stride()[:2]]


def _counts(inputs: tuple[Tensor, ...]) -> dict[str, int]:
    return {name: part.shape[2] for name, part in zip(("NX", "NF", "NR"), inputs, strict=True)}


def _weight_counts(weights: tuple[Tensor, ...]) -> dict[str, int]:
    return {name: part.shape[0] for name, part in zip(("NW", "NFW", "NRW"), weights, strict=True)}


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.gradient_clip = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0])


def _differentiate(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, y = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy.contiguous()
    dfinal = None if dfinal is None else dfinal.contiguous()
    *gradients, dinitial = _backward(*tensors, y, dy, dfinal, ctx.gradient_clip)
    initial_state = tensors[6]
    return *gradients, None if initial_state is None else dinitial, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
