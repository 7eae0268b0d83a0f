"""The loss of a language model: the head's linear map and the cross-entropy of its logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends
from archsearch.kernels.fla import why_unavailable

BACKENDS = Backends("linear_cross_entropy", {"fla": why_unavailable})

IGNORED = -100


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the mean cross-entropy in nats of `x @ weight^T` over the targets that are not -100.

    `x` is `[N, D]`, `weight` `[V, D]`, `targets` `[N]`. The softmax is in at least float32. The fast path holds the
    logits of some thousand rows at a time, never all of them.
    """
    low = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
    refusal = _why_refused(weight, low)
    if BACKENDS.choose(backend, x, {"fla": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.linear_cross_entropy.gpu.chunks import (
            linear_cross_entropy_chunked,  # fla imports Triton
        )

        return linear_cross_entropy_chunked(x, weight, targets, low)
    logits = functional.linear(x, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED)


def _why_refused(weight: Tensor, low: torch.dtype) -> str | None:
    if low not in (torch.bfloat16, torch.float16):
        return f"it multiplies in bfloat16 or float16; got {str(low).removeprefix('torch.')}"
    if weight.shape[0] % 8 or weight.shape[1] % 8:
        return f"its products need sizes that 8 divides; got a weight of {tuple(weight.shape)}"
    return None
