"""The state-space recurrence of Mamba-2 in plain PyTorch, chunk by chunk (state-space duality)."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.chunks import decay_between, join_chunks, split_chunks


def ssd_chunked(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `ssd_loop` does: attention inside a chunk, a state between chunks (arXiv:2405.21060, section 6)."""
    length = x.shape[1]
    x, log_decay, b, c = (split_chunks(part) for part in (x, log_decay, b, c))
    between = decay_between(log_decay)
    from_start = log_decay.cumsum(-1).exp()[..., None]
    inside = ((c @ b.mT) * between) @ x
    written = (b * between[..., -1, :, None]).mT @ x

    before = []
    for i in range(x.shape[2]):
        before.append(state)
        state = from_start[:, :, i, -1:] * state + written[:, :, i]
    carried = (c * from_start) @ torch.stack(before, dim=2)
    return join_chunks(inside + carried, length), state
