"""The short convolution's kernels as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.short_conv.gpu.triton_short_conv import short_conv_backward_kernel, short_conv_forward_kernel
from archsearch.kernels.strides import rows_side_by_side, vector_width

STEPS, CHANNELS = 64, 256  # of one program, which is one warp: 8 channels, or 16 bytes, a lane


def short_conv_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool
) -> Tensor:
    """Return what `short_conv` does; `starts` `[T]` holds the first step of each step's document where packed."""
    y: Tensor = _forward(x, weight, bias, taps, starts, silu)
    return y


@define_op("short_conv_forward")
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool
) -> Tensor:
    x = rows_side_by_side(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid, arguments, constants = _launch(x, weight, bias, taps, starts, silu)
    short_conv_forward_kernel[grid](*arguments, y, x.shape[1], x.stride(0), x.stride(1), **constants)
    return y


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define_op("short_conv_backward")
def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, dy: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x, dy = rows_side_by_side(x), dy.contiguous()
    grid, arguments, constants = _launch(x, weight, bias, taps, starts, silu)
    parts = grid[0] * grid[2], *weight.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = weight.new_empty(parts, dtype=torch.float32)
    dbias = weight.new_empty(parts[:2] if bias is not None else (0, 0), dtype=torch.float32)
    short_conv_backward_kernel[grid](
        *arguments, dy, dx, dweight, dbias, x.shape[1], x.stride(0), x.stride(1), **constants
    )
    return dx, dweight.sum(0).to(weight.dtype), dbias.sum(0).to(weight.dtype if bias is None else bias.dtype)


@_backward.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, dy: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dbias = weight.new_empty(0) if bias is None else torch.empty_like(bias)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(weight), dbias


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool
) -> tuple[tuple[int, int, int], tuple[Tensor, ...], dict[str, Any]]:
    """Return the grid, the arguments and the constants that both kernels have in common."""
    rows, steps, channels = x.shape
    grid = -(-steps // STEPS), -(-channels // CHANNELS), rows
    tensors = x, weight.contiguous(), *(x if given is None else given.contiguous() for given in (bias, taps, starts))
    constants = {
        "C": channels, "W": weight.shape[1], "STEPS": STEPS, "BC": CHANNELS, "VECTOR": vector_width(x),
        "BIAS": bias is not None, "SILU": silu, "GIVEN": taps is not None, "VARLEN": starts is not None, "num_warps": 1,
    }  # fmt: skip
    return grid, tensors, constants


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    bias = ctx.saved_tensors[2]
    dx, dweight, dbias = _backward(*ctx.saved_tensors, dy, ctx.silu)
    return dx, dweight, None if bias is None else dbias, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
