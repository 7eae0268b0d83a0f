"""The GRU in plain PyTorch: a loop over time, once as written and once with its gradient by hand.

Both take one head count N: `x`, `forget`, `reset` `[B, T, N, D]` (what enters z, f and r before their functions),
a weight `[N, D, D]` for each, `state` `[B, N, D]`, and return every state `[B, T, N, D]`. The gradient carried from
one step to the one before is clipped, not the one of the states returned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.steps import batch_first, clip_carried, clip_gradient, time_first, weight_gradient


def gru_loop(
    x: Tensor,
    forget: Tensor,
    reset: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    reset_weight: Tensor,
    state: Tensor,
    clip: float | None = None,
) -> Tensor:
    """Run the recurrence as Cho et al. (arXiv:1406.1078, eq. 5-8) state it, f being their z; autograd differentiates.

    `r = sigmoid(h W_r + x_r)`, `f = sigmoid(h W_f + x_f)`, `z = tanh((r * h) W + x)`, `h = f h + (1 - f) z`.
    """
    states = []
    for t in range(x.shape[1]):
        r = torch.sigmoid(_times(state, reset_weight) + reset[:, t])
        f = torch.sigmoid(_times(state, forget_weight) + forget[:, t])
        z = torch.tanh(_times(r * state, weight) + x[:, t])
        states.append(f * state + (1 - f) * z)
        state = clip_carried(states[-1], clip)
    return torch.stack(states, dim=1)


def gru_by_hand(
    x: Tensor,
    forget: Tensor,
    reset: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    reset_weight: Tensor,
    state: Tensor,
    clip: float | None = None,
) -> Tensor:
    """Run the same recurrence with the hand-written gradient: several times faster than autograd through the loop."""
    inputs = (x, forget, reset, weight, forget_weight, reset_weight, state, clip)
    states: Tensor = _GRU.apply(*inputs)  # type: ignore[no-untyped-call]
    return states


def _times(state: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bni,nij->bnj", state, weight)


class _GRU(Function):
    """Inside, f and r lie side by side, so that one product makes both: `gates` `[T, N, B, 2 D]`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        forget: Tensor,
        reset: Tensor,
        weight: Tensor,
        forget_weight: Tensor,
        reset_weight: Tensor,
        state: Tensor,
        clip: float | None,
    ) -> Tensor:
        candidates = time_first(x)  # each x_t until its z_t is there; the gates alike
        gates, gate_weight = time_first(torch.cat([forget, reset], -1)), torch.cat([forget_weight, reset_weight], -1)
        states = torch.cat([state.transpose(0, 1)[None], torch.empty_like(candidates)])
        for t in range(x.shape[1]):
            f, r = gates[t].baddbmm_(states[t], gate_weight).sigmoid_().chunk(2, dim=-1)
            candidates[t].baddbmm_(r * states[t], weight).tanh_()
            torch.lerp(candidates[t], states[t], f, out=states[t + 1])
        ctx.save_for_backward(weight, gate_weight, candidates, gates, states)
        ctx.clip = clip
        return batch_first(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, gate_weight, candidates, gates, states = ctx.saved_tensors
        with full_precision(states):
            from_above, before = time_first(grads[0]), states[:-1]
            f, r = gates.chunk(2, dim=-1)
            before_tanh = (1 - f) * (1 - candidates * candidates)  # starts as the slope from h_t on, as do both gates'
            before_gates = gates * (1 - gates)
            d_f, d_r = before_gates.chunk(2, dim=-1)
            d_f *= before - candidates
            d_r *= before
            carried = torch.zeros_like(states[0])
            for t in range(from_above.shape[0] - 1, -1, -1):
                total = from_above[t] + clip_gradient(carried, ctx.clip)
                before_tanh[t] *= total
                d_f[t] *= total
                through_reset = torch.bmm(before_tanh[t], weight.mT)
                d_r[t] *= through_reset
                carried = (f[t] * total).addcmul_(r[t], through_reset).baddbmm_(before_gates[t], gate_weight.mT)
            d_weight = weight_gradient(r * before, before_tanh)
            d_gate_weights = weight_gradient(before, before_gates).chunk(2, dim=-1)
            d_inputs = (batch_first(grad) for grad in (before_tanh, d_f, d_r))
            return *d_inputs, d_weight, *d_gate_weights, carried.transpose(0, 1), None
