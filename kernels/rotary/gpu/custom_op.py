"""Rotary position embedding as an op of torch.library: opaque to torch.compile, with a registered gradient.

flash-linear-attention has one too, which rounds the sines to the inputs' dtype.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.rotary.gpu.triton_rotary import rotary_kernel

STEPS = 16  # of one program


def rotate_triton(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Return what `rotate` does."""
    y: Tensor = _turn(x, positions, theta, False)
    return y


@define_op("rotary")
def _turn(x: Tensor, positions: Tensor, theta: float, back: bool) -> Tensor:
    if x.stride(3) != 1 or x.stride(2) != x.shape[3]:  # the heads of a step have to lie side by side
        x = x.contiguous()
    rows, steps, heads, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = width // 2
    rotary_kernel[-(-steps // STEPS), rows](
        x, positions.contiguous(), _frequencies(width, theta, x.device), y, steps, x.stride(0), x.stride(1),
        H=heads, HALF=half, BH=1 << (half - 1).bit_length(), BT=STEPS, BACK=back, num_warps=4,
    )  # fmt: skip
    return y


@functools.cache
def _frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """Return the radians per step of each pair: exact to float32, where a power computed in float32 would not be."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    return (theta**-exponents).float().to(device)


@_turn.register_fake
def _(x: Tensor, positions: Tensor, theta: float, back: bool) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, ctx.theta, ctx.back = inputs
    ctx.save_for_backward(positions)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx: Tensor = _turn(dy, *ctx.saved_tensors, ctx.theta, not ctx.back)
    return dx, None, None, None


_turn.register_autograd(_differentiate, setup_context=_save_for_backward)
