"""The gate of a SwiGLU MLP as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.swiglu.gpu.triton_swiglu import swiglu_backward_kernel, swiglu_forward_kernel

BLOCK = 1024  # channels of one program


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """Return what `swiglu` does."""
    y: Tensor = _forward(gate_up)
    return y


@define_op("swiglu_forward")
def _forward(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], width)
    rows = y.numel() // width
    swiglu_forward_kernel[rows, -(-width // BLOCK)](gate_up, y, rows, width, BLOCK, num_warps=4)
    return y


@_forward.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


@define_op("swiglu_backward")
def _backward(gate_up: Tensor, dy: Tensor) -> Tensor:
    gate_up, dy = gate_up.contiguous(), dy.contiguous()
    width = dy.shape[-1]
    dgate_up = torch.empty_like(gate_up)
    rows = dy.numel() // width
    swiglu_backward_kernel[rows, -(-width // BLOCK)](gate_up, dy, dgate_up, rows, width, BLOCK, num_warps=4)
    return dgate_up


@_backward.register_fake
def _(gate_up: Tensor, dy: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> Tensor:
    dgate_up: Tensor = _backward(*ctx.saved_tensors, dy)
    return dgate_up


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
