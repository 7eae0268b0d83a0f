"""Sum and RMSNorm as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.add_rms_norm.gpu.triton_add_rms_norm import (
    add_rms_norm_backward_kernel,
    add_rms_norm_forward_kernel,
)
from archsearch.kernels.library import define_op

TILE = 2048  # elements of one program at a time
PROGRAMS = 1024  # of a backward pass: several for every multiprocessor, few enough for their partial sums


def add_rms_norm_triton(
    x: Tensor, update: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what `add_rms_norm` does, the norm in `dtype`."""
    total, normed, _ = _forward(x, update, weight, eps, dtype)
    return (x if update is None else total), normed


@define_op("add_rms_norm_forward")
def _forward(
    x: Tensor, update: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum (none where there is no update), its norm and the factor of every row."""
    x, weight = x.contiguous(), weight.contiguous()
    update = None if update is None else update.contiguous()
    total, normed, scales = _results(x, update, dtype)
    rows, constants = _launch(x)
    add_rms_norm_forward_kernel[(-(-rows // constants["R"]),)](
        x, x if update is None else update, weight, total, normed, scales, rows, eps,
        ADD=update is not None, **constants,
    )  # fmt: skip
    return total, normed, scales


@_forward.register_fake
def _(
    x: Tensor, update: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(x, update, dtype)


@define_op("add_rms_norm_backward")
def _backward(
    total: Tensor, weight: Tensor, scales: Tensor, dtotal: Tensor | None, dnormed: Tensor, narrow: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of an update of the `narrow` dtype if it has its own, and of the weight."""
    rows, constants = _launch(total)
    programs = min(-(-rows // constants["R"]), PROGRAMS)
    dtotal = None if dtotal is None else dtotal.contiguous()
    dx, dupdate = _gradients(total, narrow)
    dweight = total.new_empty(programs, constants["S"], dtype=torch.float32)
    add_rms_norm_backward_kernel[(programs,)](
        total.contiguous(), weight.contiguous(), scales, dnormed if dtotal is None else dtotal, dnormed.contiguous(),
        dx, dupdate, dweight, rows, STREAM=dtotal is not None, NARROW=narrow is not None, **constants,
    )  # fmt: skip
    return dx, dupdate, dweight.sum(0).to(weight.dtype)


@_backward.register_fake
def _(
    total: Tensor, weight: Tensor, scales: Tensor, dtotal: Tensor | None, dnormed: Tensor, narrow: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    return *_gradients(total, narrow), torch.empty_like(weight)


def _results(x: Tensor, update: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    wider = x.dtype if update is None else torch.promote_types(x.dtype, update.dtype)
    total = torch.empty(x.shape if update is not None else (0,), dtype=wider, device=x.device)
    normed = torch.empty(x.shape, dtype=dtype, device=x.device)
    return total, normed, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)


def _gradients(total: Tensor, narrow: torch.dtype | None) -> tuple[Tensor, Tensor]:
    dx = torch.empty(total.shape, dtype=total.dtype, device=total.device)
    return dx, torch.empty(total.shape if narrow else (0,), dtype=narrow or total.dtype, device=total.device)


def _launch(x: Tensor) -> tuple[int, dict[str, int]]:
    """Return the rows and the constants that both kernels have in common."""
    size = x.shape[-1]
    padded = 1 << (size - 1).bit_length()
    return x.numel() // size, {"S": size, "R": max(1, TILE // padded), "BS": padded, "num_warps": 8}


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, update, weight, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.dtypes = x.dtype, None if update is None else update.dtype
    ctx.save_for_backward(x if update is None else output[0], weight, output[2])


def _differentiate(ctx: Any, dtotal: Tensor | None, dnormed: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    total, weight, scales = ctx.saved_tensors
    of_x, of_update = ctx.dtypes
    narrow = of_update if of_update != total.dtype else None
    dnormed = torch.zeros_like(total) if dnormed is None else dnormed
    dx, dupdate, dweight = _backward(total, weight, scales, dtotal, dnormed, narrow)
    if of_update is not None and narrow is None:
        dupdate = dx
    return dx.to(of_x), None if of_update is None else dupdate, dweight, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
