"""The short convolution's kernels as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.short_conv.gpu.triton_short_conv import short_conv_backward_kernel, short_conv_forward_kernel
from archsearch.kernels.strides import rows_side_by_side, vector_width

STEPS, CHANNELS = 64, 256  # of one program, which is one warp: 8 channels, or 16 bytes, a lane


def short_conv_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool,
    widths: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the parts that `short_conv` does, up to three.

    `starts` `[T]` holds the first step of each step's document where packed.
    """
    second, third = ([*widths, 0, 0])[1:3]
    outputs: tuple[Tensor, ...] = _forward(x, weight, bias, taps, starts, silu, second, third)
    return outputs[: len(widths)]


@define_op("short_conv_forward")
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool,
    second: int, third: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the parts of the output, the last ones of `second` and `third` channels, which may be none."""
    x = rows_side_by_side(x)
    outputs = _parts(x, second, third)
    grid, arguments, constants = _launch(x, weight, bias, taps, starts, silu, second, third)
    short_conv_forward_kernel[grid](*arguments, *outputs, x.shape[1], x.stride(0), x.stride(1), **constants)
    return outputs


@_forward.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool,
    second: int, third: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _parts(x, second, third)


@define_op("short_conv_backward")
def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, dy: Tensor,
    dy_second: Tensor, dy_third: Tensor, silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x, gradients = rows_side_by_side(x), [part.contiguous() for part in (dy, dy_second, dy_third)]
    second, third = dy_second.shape[2], dy_third.shape[2]
    grid, arguments, constants = _launch(x, weight, bias, taps, starts, silu, second, third)
    parts = grid[0] * grid[2], *weight.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = weight.new_empty(parts, dtype=torch.float32)
    dbias = weight.new_empty(parts[:2] if bias is not None else (0, 0), dtype=torch.float32)
    short_conv_backward_kernel[grid](
        *arguments, *gradients, dx, dweight, dbias, x.shape[1], x.stride(0), x.stride(1), **constants
    )
    return dx, dweight.sum(0).to(weight.dtype), dbias.sum(0).to(weight.dtype if bias is None else bias.dtype)


@_backward.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, dy: Tensor,
    dy_second: Tensor, dy_third: Tensor, silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dbias = weight.new_empty(0) if bias is None else torch.empty_like(bias)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(weight), dbias


def _parts(x: Tensor, second: int, third: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the parts of an output shaped as `x`."""
    rows, steps, channels = x.shape

    def part(width: int) -> Tensor:
        return torch.empty(rows, steps, width, dtype=x.dtype, device=x.device)

    return part(channels - second - third), part(second), part(third)


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, starts: Tensor | None, silu: bool,
    second: int, third: int,
) -> tuple[tuple[int, int, int], tuple[Tensor, ...], dict[str, Any]]:  # fmt: skip
    """Return the grid, the arguments and the constants that both kernels have in common."""
    rows, steps, channels = x.shape
    widths = channels - second - third, second, third
    grid = -(-steps // STEPS), sum(-(-width // CHANNELS) for width in widths), rows
    tensors = x, weight.contiguous(), *(x if given is None else given.contiguous() for given in (bias, taps, starts))
    constants = {
        "C": channels, "C0": widths[0], "C1": second, "C2": third, "ALIGN": math.gcd(*widths, 16),
        "W": weight.shape[1], "STEPS": STEPS, "BC": CHANNELS, "VECTOR": vector_width(x),
        "BIAS": bias is not None, "SILU": silu, "GIVEN": taps is not None, "VARLEN": starts is not None, "num_warps": 1,
    }  # fmt: skip
    return grid, tensors, constants


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu, ctx.second, ctx.third = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    x, _, bias, *_ = ctx.saved_tensors
    widths = x.shape[2] - ctx.second - ctx.third, ctx.second, ctx.third
    dys = (x.new_zeros(*x.shape[:2], width) if dy is None else dy for dy, width in zip(gradients, widths, strict=True))
    dx, dweight, dbias = _backward(*ctx.saved_tensors, *dys, ctx.silu)
    return dx, dweight, None if bias is None else dbias, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
