"""The vector RNN in plain PyTorch: a loop over time, once as written and once with its gradient by hand.

Both take one head count N: `x` `[B, T, N, D]`, `weight` `[N, D, D]`, `state` `[B, N, D]`, and return every state
`[B, T, N, D]`. The gradient carried from one step to the one before is clipped, not the one of the states returned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.steps import batch_first, clip_carried, clip_gradient, time_first, weight_gradient


def rnn_loop(x: Tensor, weight: Tensor, state: Tensor, clip: float | None = None) -> Tensor:
    """Run `h_t = tanh(h_{t-1} W + x_t)` (Elman, 1990); autograd differentiates."""
    states = []
    for t in range(x.shape[1]):
        states.append(torch.tanh(torch.einsum("bni,nij->bnj", state, weight) + x[:, t]))
        state = clip_carried(states[-1], clip)
    return torch.stack(states, dim=1)


def rnn_by_hand(x: Tensor, weight: Tensor, state: Tensor, clip: float | None = None) -> Tensor:
    """Run the same recurrence with the hand-written gradient: several times faster than autograd through the loop."""
    states: Tensor = _RNN.apply(x, weight, state, clip)  # type: ignore[no-untyped-call]
    return states


class _RNN(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, state: Tensor, clip: float | None) -> Tensor:
        states = torch.cat([state.transpose(0, 1)[None], time_first(x)])  # h_0, then each x_t until its h_t is there
        for t in range(x.shape[1]):
            states[t + 1].baddbmm_(states[t], weight).tanh_()
        ctx.save_for_backward(weight, states)
        ctx.clip = clip
        return batch_first(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, states = ctx.saved_tensors
        with full_precision(states):
            from_above = time_first(grads[0])
            before_tanh = 1 - states[1:] * states[1:]  # starts as the slope
            carried = torch.zeros_like(states[0])
            for t in range(from_above.shape[0] - 1, -1, -1):
                before_tanh[t] *= from_above[t] + clip_gradient(carried, ctx.clip)
                carried = torch.bmm(before_tanh[t], weight.mT)
            d_weight = weight_gradient(states[:-1], before_tanh)
            return batch_first(before_tanh), d_weight, carried.transpose(0, 1), None
