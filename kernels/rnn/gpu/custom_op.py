"""The vector RNN as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.rnn.gpu.launch import (
    documents_by_step,
    layout_of,
    sum_heads,
    tensor_or,
    weight_gradient,
)
from archsearch.kernels.rnn.gpu.triton_backward import rnn_backward_kernel
from archsearch.kernels.rnn.gpu.triton_forward import rnn_forward_kernel
from archsearch.kernels.strides import rows_side_by_side


def rnn_triton(
    x: Tensor, weight: Tensor, initial_state: Tensor | None = None, gradient_clip: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `rnn` does, which checks the inputs; the same bits in every run.

    All sums and states are float32, but the gradient takes the states as y, rounded, holds them: in bfloat16 an error
    of 2e-3 to 5e-3 of its norm, which two more bytes a state would take away.
    """
    initial_state = None if initial_state is None else initial_state.float().contiguous()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(x.device).contiguous()
    y, final = _forward(rows_side_by_side(x), weight.contiguous(), initial_state, cu_seqlens, gradient_clip)
    return y, final


@define_op("rnn_forward")
def _forward(
    x: Tensor, weight: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    layout = layout_of(x, max(x.shape[2], weight.shape[0]), cu_seqlens)
    y = x.new_empty(layout.shape)
    final = x.new_empty(layout.state_shape, dtype=torch.float32)
    grid, constants = layout.program(weights=1)
    rnn_forward_kernel[grid](
        x, weight, tensor_or(initial_state, final), tensor_or(cu_seqlens, final), y, final,
        layout.steps, x.stride(0), x.stride(1), NX=x.shape[2], NW=weight.shape[0],
        HAS_STATE=initial_state is not None, FAST=x.dtype == torch.bfloat16, **constants,
    )  # fmt: skip
    return y, final


@_forward.register_fake
def _(
    x: Tensor, weight: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    layout = layout_of(x, max(x.shape[2], weight.shape[0]), cu_seqlens)
    return x.new_empty(layout.shape), x.new_empty(layout.state_shape, dtype=torch.float32)


@define_op("rnn_backward")
def _backward(
    weight: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, y: Tensor, dy: Tensor,
    dfinal: Tensor | None, gradient_clip: float | None, input_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    layout = layout_of(y, y.shape[2], cu_seqlens)
    dx, dinitial = torch.empty_like(y), y.new_empty(layout.state_shape, dtype=torch.float32)
    grid, constants = layout.program(weights=1)
    rnn_backward_kernel[grid](
        weight, tensor_or(cu_seqlens, y), y, dy, tensor_or(dfinal, dinitial), dx, dinitial,
        gradient_clip or 0.0, layout.steps, NW=weight.shape[0], HAS_FINAL=dfinal is not None,
        CLIP=gradient_clip is not None, **constants,
    )  # fmt: skip
    documents = documents_by_step(cu_seqlens, layout.steps)
    dweight = weight_gradient(layout, y, initial_state, cu_seqlens, documents, None, dx, weight)
    return sum_heads(dx, input_heads), dweight, dinitial


@_backward.register_fake
def _(
    weight: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, y: Tensor, dy: Tensor,
    dfinal: Tensor | None, gradient_clip: float | None, input_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    layout = layout_of(y, y.shape[2], cu_seqlens)
    dx = y.new_empty(*y.shape[:2], input_heads, y.shape[3])
    return dx, torch.empty_like(weight), y.new_empty(layout.state_shape, dtype=torch.float32)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, initial_state, cu_seqlens, ctx.gradient_clip = inputs
    ctx.input_heads = x.shape[2]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(weight, initial_state, cu_seqlens, output[0])


def _differentiate(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
    weight, initial_state, cu_seqlens, y = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy.contiguous()
    dfinal = None if dfinal is None else dfinal.contiguous()
    dx, dweight, dinitial = _backward(
        weight, initial_state, cu_seqlens, y, dy, dfinal, ctx.gradient_clip, ctx.input_heads
    )
    return dx, dweight, None if initial_state is None else dinitial, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
