"""Linear map and cross-entropy a chunk of rows at a time: gradients are made in the forward pass, logits never kept.

fla has this as one function, too, but it accumulates the weight's gradient by float32 matrix products, which take ten
times as long as bfloat16 ones; here those accumulate in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from fla.modules.fused_cross_entropy.ops import cross_entropy_bwd, cross_entropy_fwd
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.linear_cross_entropy.op import IGNORED

CHUNK_ELEMENTS = 1 << 29  # of the logits that exist at a time


def linear_cross_entropy_chunked(x: Tensor, weight: Tensor, targets: Tensor, low: torch.dtype) -> Tensor:
    """Return what `linear_cross_entropy` does, with products of operands in `low`."""
    with full_precision(x):
        loss: Tensor = _LinearCrossEntropy.apply(x, weight, targets, low)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, low: torch.dtype) -> Tensor:
        rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
        inputs, matrix = x.to(low), weight.to(low)
        scale = (targets != IGNORED).sum().float().reciprocal()
        wanted = any(ctx.needs_input_grad[:2])
        losses = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        dx = torch.empty_like(inputs) if wanted else None
        dweight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device) if wanted else None
        for first in range(0, x.shape[0], rows):
            part, wants = inputs[first : first + rows], targets[first : first + rows]
            logits = part @ matrix.t()
            losses[first : first + rows], _, log_sums, *_ = cross_entropy_fwd(logits, wants, ignore_index=IGNORED)
            if dx is None or dweight is None:
                continue
            gradient = cross_entropy_bwd(
                logits, wants, log_sums, scale.expand(len(wants)), ignore_index=IGNORED, inplace_backward=True
            )
            torch.mm(gradient, matrix, out=dx[first : first + rows])
            dweight = torch.addmm(dweight, gradient.t(), part, out_dtype=torch.float32)
        ctx.dtypes = x.dtype, weight.dtype
        ctx.save_for_backward(dx, dweight)
        return losses.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        return (dx * dloss).to(x_dtype), (dweight * dloss).to(weight_dtype), None, None
