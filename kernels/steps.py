"""What the recurrences that run step by step share: the clipped gradient, and a layout with time first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def clip_carried(state: Tensor, clip: float | None) -> Tensor:
    """Pass a state on; clip the gradient that comes back over this edge, elementwise, to [-clip, clip]."""
    passed: Tensor = _ClipCarried.apply(state, clip)  # type: ignore[no-untyped-call]
    return passed


def clip_gradient(grad: Tensor, clip: float | None) -> Tensor:
    """Return a gradient carried through time as it arrives one step earlier; None clips nothing."""
    return grad if clip is None else grad.clamp(-clip, clip)


def check_clip(clip: float | None) -> None:
    """Raise ValueError where nothing would pass the clip."""
    if clip is not None and not clip > 0:
        raise ValueError(f"gradient_clip must be positive; got {clip}")


def time_first(x: Tensor) -> Tensor:
    """Copy `[B, T, N, ...]` as `[T, N, B, ...]`: one matrix per step and head."""
    return x.movedim(0, 2).clone(memory_format=torch.contiguous_format)


def batch_first(x: Tensor) -> Tensor:
    """Copy `[T, N, B, ...]` as `[B, T, N, ...]`."""
    return x.movedim(2, 0).clone(memory_format=torch.contiguous_format)


def weight_gradient(inputs: Tensor, grads: Tensor) -> Tensor:
    """Sum `x_t^T g_t` over steps and batch for `x`, `g` `[T, N, B, ...]`; returns one matrix per head."""
    return torch.einsum("tnbi,tnbj->nij", inputs, grads)


class _ClipCarried(Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, clip: float | None) -> Tensor:
        ctx.clip = clip
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return clip_gradient(grads[0], ctx.clip), None
