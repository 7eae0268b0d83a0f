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
    """Return the decay of what step j wrote until step i, `exp(G_i - G_j)`; 0 where j > i.

    `log_decay` G `[..., C]` is summed from the chunk's start; returns `[..., C, C]`. The exponent is taken of
    differences and masked first: `exp(-G_j)` alone overflows, and what overflows turns gradients into NaN.
    """
    difference = log_decay[..., :, None] - log_decay[..., None, :]
    future = torch.ones_like(difference, dtype=torch.bool).triu(1)
    return difference.masked_fill(future, -torch.inf).exp()
