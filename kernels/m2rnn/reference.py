"""The M²RNN recurrence in plain PyTorch: a loop over time, once as written and once with its gradient by hand.

All functions take one head count N: `q`, `k` `[B, T, N, K]`, `v` `[B, T, N, V]`, `weight` `[N, V, V]`,
`forget` `[B, T, N]`, `state` `[B, N, K, V]`, and return `y` `[B, T, N, V]` and the final state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.steps import batch_first, clip_carried, clip_gradient, time_first


def m2rnn_loop(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Run the recurrence as arXiv:2603.14360v2, eq. 10-12 (without the residual) states it; autograd differentiates."""
    outputs = []
    for t in range(q.shape[1]):
        f = forget[:, t, :, None, None]
        z = torch.tanh(state @ weight + k[:, t, :, :, None] * v[:, t, :, None, :])
        new = f * state + (1 - f) * z
        outputs.append((new * q[:, t, :, :, None]).sum(dim=2))
        state = clip_carried(new, clip)
    return torch.stack(outputs, dim=1), state


def m2rnn_by_hand(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Run the same recurrence with the hand-written gradient: several times faster than autograd through the loop."""
    y, final = _M2RNN.apply(q, k, v, weight, forget, state, clip)  # type: ignore[no-untyped-call]
    return y, final


class _M2RNN(Function):
    """Inside, time comes first and heads before the batch, so that `H W` is one product per head: `[T, N, B, ...]`."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float | None
    ) -> tuple[Tensor, Tensor]:
        q, k, v, f = (time_first(x) for x in (q, k, v, forget[..., None, None]))
        candidates = k.unsqueeze(-1) * v.unsqueeze(-2)
        states = torch.empty_like(candidates[:1]).repeat(q.shape[0] + 1, 1, 1, 1, 1)
        states[0] = state.transpose(0, 1)
        for t in range(q.shape[0]):
            _rows(candidates[t]).baddbmm_(_rows(states[t]), weight)
            torch.lerp(candidates[t].tanh_(), states[t], f[t], out=states[t + 1])
        y = torch.matmul(q.unsqueeze(-2), states[1:]).squeeze(-2)
        ctx.save_for_backward(q, k, v, weight, f, states, candidates)
        ctx.clip = clip
        return batch_first(y), states[-1].transpose(0, 1).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weight, f, states, candidates = ctx.saved_tensors
        with full_precision(states):
            u = time_first(grads[0])
            total = q.unsqueeze(-1) * u.unsqueeze(-2)  # R; starts as its direct part
            before_tanh = (1 - f) * (1 - candidates * candidates)  # D; starts as its slope
            carried = grads[1].transpose(0, 1).contiguous()
            d_weight = torch.zeros_like(weight)
            for t in range(q.shape[0] - 1, -1, -1):
                total[t] += clip_gradient(carried, ctx.clip)
                before_tanh[t] *= total[t]
                carried = f[t] * total[t]
                _rows(carried).baddbmm_(_rows(before_tanh[t]), weight.mT)
                d_weight.baddbmm_(_rows(states[t]).mT, _rows(before_tanh[t]))
            d_q = torch.matmul(states[1:], u.unsqueeze(-1)).squeeze(-1)
            d_k = torch.matmul(before_tanh, v.unsqueeze(-1)).squeeze(-1)
            d_v = torch.matmul(k.unsqueeze(-2), before_tanh).squeeze(-2)
            d_forget = (total * (states[:-1] - candidates)).sum((-1, -2))
            d_q, d_k, d_v, d_forget = (batch_first(grad) for grad in (d_q, d_k, d_v, d_forget))
            return d_q, d_k, d_v, d_weight, d_forget, carried.transpose(0, 1), None


def _rows(x: Tensor) -> Tensor:
    """View `[N, B, K, V]` as one matrix per head, `[N, B K, V]`."""
    return x.view(x.shape[0], -1, x.shape[-1])
