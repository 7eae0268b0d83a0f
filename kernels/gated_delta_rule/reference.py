"""The gated delta rule in plain PyTorch, step by step: the truth that the chunked form and kernels answer to."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta_rule_loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run `S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T`, `y_t = scale S_t^T q_t` (arXiv:2412.06464, eq. 10).

    `q`, `k` `[B, T, H, K]`, `v` `[B, T, H, V]`, `log_decay` (log a), `beta` (b) `[B, T, H]`, `state` `[B, H, K, V]`;
    returns y `[B, T, H, V]` and the final state.
    """
    outputs = []
    for t in range(q.shape[1]):
        state = log_decay[:, t, :, None, None].exp() * state
        recalled = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        written = beta[:, t, :, None] * (v[:, t] - recalled)
        state = state + k[:, t, :, :, None] * written[:, :, None, :]
        outputs.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state
