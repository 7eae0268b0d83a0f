"""The gated delta rule in plain PyTorch, chunk by chunk: matrix products in place of most of the loop over time."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.chunks import decay_between, join_chunks, split_chunks


def gated_delta_rule_chunked(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `gated_delta_rule_loop` does, by the WY form of a chunk's products (arXiv:2412.06464, section 3.3).

    Inside a chunk, step i writes `d_i = b_i (v_i - exp(G_i) S^T k_i - sum_{j<i} exp(G_i - G_j) (k_i k_j) d_j)` with S
    the state at, and G the log decay summed from, the chunk's start: a triangular system, solved for v and for k.
    """
    length = q.shape[1]
    q, k, v, log_decay, beta = (split_chunks(x) for x in (q * scale, k, v, log_decay, beta))
    between = decay_between(log_decay)
    from_start = log_decay.cumsum(-1).exp()[..., None]

    system = (beta[..., None] * (k @ k.mT) * between).tril(-1)  # its unit diagonal is implied
    both = beta[..., None] * torch.cat([v, k * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    from_v, from_k = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    attention = (q @ k.mT) * between
    q, k = q * from_start, k * between[..., -1, :, None]

    outputs = []
    for i in range(q.shape[2]):
        written = from_v[:, :, i] - from_k[:, :, i] @ state
        outputs.append(q[:, :, i] @ state + attention[:, :, i] @ written)
        state = from_start[:, :, i, -1:] * state + k[:, :, i].mT @ written
    return join_chunks(torch.stack(outputs, dim=2), length), state
