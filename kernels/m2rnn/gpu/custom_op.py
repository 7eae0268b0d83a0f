"""The M²RNN kernels as an op of torch.library: opaque to torch.compile, with a fake and a registered gradient."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.library import define_op
from archsearch.kernels.m2rnn.gpu.launch import (
    bits_dtype,
    checkpoint_shape,
    layout_of,
    plan_of,
    run_backward,
    run_forward,
)
from archsearch.kernels.m2rnn.gpu.plan import shape_of

paths: Counter[str] = Counter()
"""How often each family of kernels (`Plan.kernels`) has run forward in this process."""


def m2rnn_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    forget: Tensor,
    initial_state: Tensor | None = None,
    gradient_clip: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `kernels.m2rnn.op.m2rnn` does, which checks the inputs; the same bits in every run.

    q, k and weight are cast to v's dtype, the type of the products' operands and of y; forget, the state and all sums
    are float32. A document of `cu_seqlens` may be empty: it passes its state on.
    """
    needs_gradient = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, weight, forget, initial_state)
    )
    q, k, v, weight = (x.to(v.dtype).contiguous() for x in (q, k, v, weight))
    if initial_state is not None:
        initial_state = initial_state.float().contiguous()
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.to(q.device, torch.int32).contiguous()
    forget = forget.float().contiguous()
    y, state, _ = _forward(q, k, v, weight, forget, initial_state, cu_seqlens, gradient_clip, needs_gradient)
    return y, state


@define_op("m2rnn_forward")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, gradient_clip: float | None, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    plan = plan_of(q, k, v, weight, forget, layout_of(q, cu_seqlens))
    paths[plan.kernels] += 1
    return run_forward(q, k, v, weight, forget, initial_state, cu_seqlens, gradient_clip, save=save)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, gradient_clip: float | None, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape, layout = shape_of(q, k, v, weight, forget), layout_of(q, cu_seqlens)
    # the number of documents decides about registers alone, and is not to be asked for: a graph may hold for any
    plan = plan_of(q, k, v, weight, forget, layout._replace(sequences=1))
    y = v.new_empty(q.shape[0], q.shape[1], shape.heads, shape.value_head_dim)
    state_shape = layout.sequences, shape.heads, shape.key_head_dim, shape.value_head_dim
    saved_shape = checkpoint_shape(plan, shape, layout) if save else (0,)
    return (
        y,
        v.new_empty(state_shape, dtype=torch.float32),
        v.new_empty(saved_shape, dtype=bits_dtype(v.dtype)),
    )


@define_op("m2rnn_backward")
def _backward(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, saved: Tensor, cu_seqlens: Tensor | None,
    dy: Tensor, dstate: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return run_backward(q, k, v, weight, forget, saved, cu_seqlens, dy, dstate, gradient_clip)


@_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, saved: Tensor, cu_seqlens: Tensor | None,
    dy: Tensor, dstate: Tensor | None, gradient_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    shape, layout = shape_of(q, k, v, weight, forget), layout_of(q, cu_seqlens)
    state_shape = layout.sequences, shape.heads, shape.key_head_dim, shape.value_head_dim
    dstate_0 = v.new_empty(state_shape, dtype=torch.float32)
    dq, dk, dv, dw, df = (torch.empty_like(x) for x in (q, k, v, weight, forget))
    return dq, dk, dv, dw, df, dstate_0


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, weight, forget, initial_state, cu_seqlens, ctx.gradient_clip, _ = inputs
    ctx.has_state = initial_state is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, weight, forget, output[2], cu_seqlens)


def _differentiate(ctx: Any, dy: Tensor | None, dstate: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, weight, forget, saved, cu_seqlens = ctx.saved_tensors
    if dy is None:
        heads = shape_of(q, k, v, weight, forget).heads
        dy = v.new_zeros(q.shape[0], q.shape[1], heads, v.shape[3])
    dstate = None if dstate is None else dstate.contiguous()
    dq, dk, dv, dw, df, dstate_0 = _backward(
        q, k, v, weight, forget, saved, cu_seqlens, dy.contiguous(), dstate, ctx.gradient_clip
    )
    return dq, dk, dv, dw, df, dstate_0 if ctx.has_state else None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
