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
        state = _ClipCarried.apply(new, clip)  # type: ignore[no-untyped-call]
    return torch.stack(outputs, dim=1), state


def m2rnn_by_hand(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Run the same recurrence with the hand-written gradient: several times faster than autograd through the loop."""
    y, final = _M2RNN.apply(q, k, v, weight, forget, state, clip)  # type: ignore[no-untyped-call]
    return y, final


class _ClipCarried(Function):
    """Pass a state on; clip the gradient that comes back over this edge, elementwise, to [-c, c]."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, clip: float | None) -> Tensor:
        ctx.clip = clip
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _clip(grads[0], ctx.clip), None


class _M2RNN(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float | None
    ) -> tuple[Tensor, Tensor]:
        length = q.shape[1]
        states = state.new_empty(length + 1, *state.shape)
        candidates = state.new_empty(length, *state.shape)
        states[0] = state
        f, q_time, k_time, v_time = _time_major(forget, q, k, v)
        for t in range(length):
            written = torch.matmul(states[t], weight)
            written.addcmul_(k_time[t].unsqueeze(-1), v_time[t].unsqueeze(-2))
            torch.tanh(written, out=candidates[t])
            torch.lerp(candidates[t], states[t], f[t, :, :, None, None], out=states[t + 1])
        y = torch.matmul(q_time.unsqueeze(-2), states[1:]).squeeze(-2)
        ctx.save_for_backward(q, k, v, weight, forget, states, candidates)
        ctx.clip = clip
        return y.transpose(0, 1).contiguous(), states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weight, forget, states, candidates = ctx.saved_tensors
        with full_precision(states):
            f, q_time, k_time, v_time, u = _time_major(forget, q, k, v, grads[0])
            carried = grads[1]
            before_tanh = torch.empty_like(candidates)
            d_forget = torch.empty_like(f)
            for t in range(q.shape[1] - 1, -1, -1):
                retained = f[t, :, :, None, None]
                total = torch.addcmul(_clip(carried, ctx.clip), q_time[t].unsqueeze(-1), u[t].unsqueeze(-2))
                slope = torch.addcmul(torch.ones_like(total), candidates[t], candidates[t], value=-1)
                torch.mul(slope.mul_(total), 1 - retained, out=before_tanh[t])
                d_forget[t] = (total * (states[t] - candidates[t])).sum((-1, -2))
                carried = torch.matmul(before_tanh[t], weight.mT).addcmul_(total, retained)
            d_q = torch.matmul(states[1:], u.unsqueeze(-1)).squeeze(-1)
            d_k = torch.matmul(before_tanh, v_time.unsqueeze(-1)).squeeze(-1)
            d_v = torch.matmul(k_time.unsqueeze(-2), before_tanh).squeeze(-2)
            d_weight = torch.einsum("tbnkv,tbnkw->nvw", states[:-1], before_tanh)
            d_q, d_k, d_v, d_forget = (grad.transpose(0, 1) for grad in (d_q, d_k, d_v, d_forget))
            return d_q, d_k, d_v, d_weight, d_forget, carried, None


def _time_major(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.transpose(0, 1).contiguous() for tensor in tensors)


def _clip(grad: Tensor, clip: float | None) -> Tensor:
    return grad if clip is None else grad.clamp(-clip, clip)
