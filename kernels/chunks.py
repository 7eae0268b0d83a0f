"""A sequence cut into chunks, for linear recurrences that run chunk by chunk instead of step by step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


def split_chunks(x: Tensor) -> Tensor:
    """Return `[B, T, H, ...]` as `[B, H, chunks, C, ...]`, zeros after the end; C is 64, or T where that is less."""
    length = x.shape[1]
    size = min(CHUNK, length)
    padded = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % size))
    return padded.reshape(x.shape[0], -1, size, *x.shape[2:]).movedim(3, 1)


def join_chunks(x: Tensor, length: int) -> Tensor:
    """Undo `split_chunks`: return `[B, H, chunks, C, ...]` as `[B, length, H, ...]`."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]


def decay_between(log_decay: Tensor) -> Tensor:
    """Return what is left at step i of what step j wrote: `exp(g_{j+1} + ... + g_i)`, 0 where j > i.

    `log_decay` g `[..., C]`; returns `[..., C, C]`. Each exponent is summed on its own: a difference of two sums from
    the start rounds badly where they are large, and the future is masked before `exp`, or it overflows into NaN
    gradients.
    """
    size = log_decay.shape[-1]
    past = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    summands = log_decay[..., :, None].masked_fill(~past.tril(-1), 0.0)
    return summands.cumsum(-2).masked_fill(~past, -torch.inf).exp()
