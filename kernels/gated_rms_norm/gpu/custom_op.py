"""Skip, gate and RMSNorm as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.gated_rms_norm.gpu.triton_gated_rms_norm import (
    gated_rms_norm_backward_kernel,
    gated_rms_norm_forward_kernel,
)
from archsearch.kernels.library import define_op
from archsearch.kernels.strides import rows_side_by_side, vector_width

TILE = 2048  # elements of one program at a time
PROGRAMS = 1024  # of a backward pass: several for every multiprocessor, few enough for their partial sums


def gated_rms_norm_triton(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None, eps: float
) -> Tensor:
    """Return what `gated_rms_norm` does, in y's dtype."""
    out: Tensor = _forward(y, weight, gate, skip, skip_weight, eps)
    return out


@define_op("gated_rms_norm_forward")
def _forward(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None, eps: float
) -> Tensor:
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device).flatten(2)
    tensors, sizes, constants = _launch(y, weight, gate, skip, skip_weight)
    grid = (-(-sizes[0] * constants["G"] // constants["R"]),)
    gated_rms_norm_forward_kernel[grid](*tensors, out, *sizes, eps, **constants)
    return out


@_forward.register_fake
def _(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None, eps: float
) -> Tensor:
    return torch.empty(y.shape, dtype=y.dtype, device=y.device).flatten(2)


@define_op("gated_rms_norm_backward")
def _backward(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None, eps: float,
    dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    tensors, sizes, constants = _launch(y, weight, gate, skip, skip_weight)
    groups = constants["G"]
    programs = max(1, min(-(-sizes[0] // constants["R"]), PROGRAMS // groups))
    dy, dgate, dskip = (_like(x, y) for x in (y, gate, skip))
    dweight = weight.new_empty(programs, groups, weight.shape[0], dtype=torch.float32)
    dskip_weight = torch.empty_like(dweight if skip is not None else dweight[:0])
    gated_rms_norm_backward_kernel[programs, groups](
        *tensors, dout.contiguous(), dy, dgate, dskip, dweight, dskip_weight, *sizes, eps, **constants
    )
    dweight = dweight.sum((0, 1)).to(weight.dtype)
    if skip_weight is None:
        return dy, dweight, dgate, dskip, dweight.new_empty(0)
    return dy, dweight, dgate, dskip, dskip_weight.sum(0).view(skip_weight.shape).to(skip_weight.dtype)


@_backward.register_fake
def _(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None, eps: float,
    dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dy, dgate, dskip = (_like(x, y) for x in (y, gate, skip))
    return dy, torch.empty_like(weight), dgate, dskip, _like(skip_weight, weight)


def _like(x: Tensor | None, other: Tensor) -> Tensor:
    """Return fresh memory for the gradient of x, none where there is no x."""
    return other.new_empty(0) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _launch(
    y: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skip_weight: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[int, ...], dict[str, Any]]:
    """Return the tensors, sizes and constants that both kernels have in common."""
    y = y.contiguous()
    strided = [rows_side_by_side(x) for x in (gate, skip) if x is not None]
    others = iter(strided)
    gate, skip = (y if x is None else next(others) for x in (gate, skip))
    factor = weight if skip_weight is None else skip_weight.contiguous()
    size = weight.shape[0]
    padded = 1 << (size - 1).bit_length()
    rows, width = y.shape[0] * y.shape[1], y.shape[2] * y.shape[3]
    constants = {
        "G": width // size, "S": size, "R": max(1, TILE // padded), "BS": padded, "VECTOR": vector_width(*strided),
        "GATE": gate is not y, "SKIP": skip is not y, "num_warps": 8,
    }  # fmt: skip
    sizes = rows, y.shape[1], gate.stride(0), gate.stride(1), skip.stride(0), skip.stride(1)
    return (y, weight.contiguous(), gate, skip, factor), sizes, constants


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    given = ctx.saved_tensors
    gradients = _backward(*given, ctx.eps, dout)
    return *(None if x is None else gradient for x, gradient in zip(given, gradients, strict=True)), None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
