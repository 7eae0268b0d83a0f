"""The state-space recurrence of Mamba-2 in plain PyTorch, step by step: the truth that other forms answer to."""

from __future__ import annotations

import torch
from torch import Tensor


def ssd_loop(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run `h_t = a_t h_{t-1} + B_t x_t^T`, `y_t = h_t^T C_t` (arXiv:2405.21060, eq. 2 with scalar-identity A).

    `x` (with dt multiplied in) `[B, T, H, P]`, `log_decay` (log a) `[B, T, H]`, `b`, `c` `[B, T, H, N]`, `state`
    `[B, H, N, P]`; returns y `[B, T, H, P]` and the final state.
    """
    outputs = []
    for t in range(x.shape[1]):
        state = log_decay[:, t, :, None, None].exp() * state + b[:, t, :, :, None] * x[:, t, :, None, :]
        outputs.append(torch.einsum("bhn,bhnp->bhp", c[:, t], state))
    return torch.stack(outputs, dim=1), state
