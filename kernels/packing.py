"""Packed documents: several sequences laid end to end in one row, `[1, T, ...]`, bounded by `cu_seqlens`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def check_cu_seqlens(cu_seqlens: Tensor, x: Tensor) -> None:
    """Raise ValueError unless `cu_seqlens` (`[documents + 1]`, from 0 to T, increasing) fits `x` (`[1, T, ...]`)."""
    bounds = cu_seqlens.tolist()
    if x.shape[0] != 1:
        raise ValueError(f"cu_seqlens needs a batch of one packed row; got batch size {x.shape[0]}")
    increasing = all(start < stop for start, stop in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != x.shape[1] or not increasing:
        raise ValueError(f"cu_seqlens must increase from 0 to the length {x.shape[1]}; got {bounds}")


def state_shape(
    x: Tensor, cu_seqlens: Tensor | None, per_sequence: tuple[int, ...], initial_state: Tensor | None
) -> tuple[int, ...]:
    """Return the shape of the states of `x` `[B, T, ...]`, one per row or packed document. Raises ValueError."""
    sequences = x.shape[0]
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, x)
        sequences = cu_seqlens.shape[0] - 1
    shape = (sequences, *per_sequence)
    if initial_state is not None and initial_state.shape != shape:
        raise ValueError(f"initial_state must have shape {shape}; got {tuple(initial_state.shape)}")
    return shape


def pad(x: Tensor, cu_seqlens: Tensor, value: float = 0.0) -> Tensor:
    """Return packed documents `[1, T, ...]` as a batch `[documents, longest, ...]`, `value` after their ends."""
    index, valid = _places(cu_seqlens)
    batch = x[0][index]
    return torch.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), batch, torch.full_like(batch[:1, :1], value))


def unpad(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return a batch `[documents, longest, ...]` as packed documents `[1, T, ...]`."""
    _, valid = _places(cu_seqlens)
    return x[valid][None]


def document_starts(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return the first step of each step's document, `[length]` int32."""
    steps = torch.arange(length, device=cu_seqlens.device)
    return cu_seqlens[torch.searchsorted(cu_seqlens, steps, right=True) - 1].to(torch.int32)


def last_steps(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return each document's last step `[documents, ...]` of a batch `[documents, longest, ...]`."""
    lengths = cu_seqlens.diff()
    return x[torch.arange(len(lengths), device=x.device), lengths - 1]


def _places(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    offsets = torch.arange(int(lengths.max()), device=cu_seqlens.device)
    valid = offsets < lengths[:, None]
    return torch.where(valid, starts[:, None] + offsets, 0), valid
