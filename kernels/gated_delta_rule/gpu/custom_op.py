"""The gated delta rule by flash-linear-attention, as an op of torch.library: its own function breaks every graph."""

from __future__ import annotations

from typing import Any

import torch
from fla.modules.norm.l2norm import l2norm_bwd, l2norm_fwd
from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_bwd, chunk_gated_delta_rule_fwd
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.fla import use_tuned
from archsearch.kernels.library import define_op
from archsearch.kernels.packing import Documents, chunks_of

use_tuned()

CHUNK = 64  # steps
PADDED = 64  # head dims are padded with zeros to multiples of it


def gated_delta_rule_fla(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, initial_state: Tensor | None,
    documents: Documents | None, normalise: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `gated_delta_rule` does, which checks the inputs; the state is float32, products are in v's dtype."""
    key, value = q.shape[-1], v.shape[-1]
    more_key, more_value = -key % PADDED, -value % PADDED
    if more_key:  # no padding at all would still copy
        q, k = (functional.pad(x, (0, more_key)) for x in (q, k))
    if more_value:
        v = functional.pad(v, (0, more_value))
    q, k, v = (x.to(v.dtype).contiguous() for x in (q, k, v))
    log_decay, beta = log_decay.float().contiguous(), beta.float().contiguous()
    if initial_state is not None:
        initial_state = functional.pad(initial_state.float(), (0, more_value, 0, more_key)).contiguous()
    bounds = (None, None) if documents is None else (documents.bounds, documents.on_cpu)
    y, state, *_ = _forward(q, k, v, log_decay, beta, scale, initial_state, *bounds, normalise)
    return y[..., :value], state[..., :key, :value]


@define_op("gated_delta_rule_forward")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, on_cpu: Tensor | None, normalise: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, the final state, and for the gradient: summed decays, inverses of chunks, 1 / |q| and 1 / |k|."""
    q_scale, k_scale = (x.new_empty(0, dtype=torch.float32) for x in (q, k))
    if normalise:
        (q, q_scale), (k, k_scale) = l2norm_fwd(q), l2norm_fwd(k)
    with full_precision(q):
        decays, y, inverses, state, *_ = chunk_gated_delta_rule_fwd(
            q, k, v, log_decay, beta, scale, initial_state, True,
            cu_seqlens=cu_seqlens, chunk_indices=_chunks(on_cpu, q), chunk_size=CHUNK,
        )  # fmt: skip
    return y.to(v.dtype), state, decays, inverses, q_scale, k_scale


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, on_cpu: Tensor | None, normalise: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = v.new_empty(sequences, v.shape[2], q.shape[3], v.shape[3], dtype=torch.float32)
    inverses = v.new_empty(*v.shape[:3], CHUNK)
    q_scale, k_scale = (q.new_empty(x.shape[:3] if normalise else (0,), dtype=torch.float32) for x in (q, k))
    return torch.empty_like(v), state, torch.empty_like(log_decay), inverses, q_scale, k_scale


@define_op("gated_delta_rule_backward")
def _backward(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, beta: Tensor, inverses: Tensor, q_scale: Tensor, k_scale: Tensor,
    scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None, on_cpu: Tensor | None, normalise: bool,
    dy: Tensor, dstate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v, the log decays, beta and the initial state."""
    if normalise:
        q, k = l2norm_fwd(q)[0], l2norm_fwd(k)[0]
    with full_precision(q):
        dq, dk, dv, dbeta, ddecay, dstate_0, *_ = chunk_gated_delta_rule_bwd(
            q, k, v, decays, beta, inverses, scale, initial_state, dy, dstate,
            cu_seqlens=cu_seqlens, chunk_indices=_chunks(on_cpu, q), chunk_size=CHUNK,
        )  # fmt: skip
    if normalise:
        dq, dk = l2norm_bwd(q, q_scale, dq), l2norm_bwd(k, k_scale, dk)
    dstate_0 = v.new_empty(0, dtype=torch.float32) if initial_state is None else dstate_0.to(initial_state.dtype)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), ddecay.to(decays.dtype), dbeta.to(beta.dtype), dstate_0


@_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, beta: Tensor, inverses: Tensor, q_scale: Tensor, k_scale: Tensor,
    scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None, on_cpu: Tensor | None, normalise: bool,
    dy: Tensor, dstate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dstate_0 = v.new_empty(0, dtype=torch.float32) if initial_state is None else torch.empty_like(initial_state)
    dq, dk, dv, ddecay, dbeta = (torch.empty_like(x) for x in (q, k, v, decays, beta))
    return dq, dk, dv, ddecay, dbeta, dstate_0


def _chunks(on_cpu: Tensor | None, q: Tensor) -> Tensor | None:
    return None if on_cpu is None else chunks_of(on_cpu, CHUNK, q.device)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, beta, ctx.scale, initial_state, cu_seqlens, on_cpu, ctx.normalise = inputs
    _, _, decays, inverses, q_scale, k_scale = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, beta, initial_state, cu_seqlens, on_cpu, decays, inverses, q_scale, k_scale)


def _differentiate(ctx: Any, dy: Tensor | None, dstate: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, beta, initial_state, cu_seqlens, on_cpu, decays, inverses, q_scale, k_scale = ctx.saved_tensors
    dy = torch.zeros_like(v) if dy is None else dy.contiguous()
    dstate = None if dstate is None else dstate.contiguous()
    dq, dk, dv, ddecay, dbeta, dstate_0 = _backward(
        q, k, v, decays, beta, inverses, q_scale, k_scale, ctx.scale, initial_state, cu_seqlens, on_cpu, ctx.normalise,
        dy, dstate,
    )  # fmt: skip
    return dq, dk, dv, ddecay, dbeta, None, None if initial_state is None else dstate_0, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
