"""The M²RNN recurrence (Mishra et al., arXiv:2603.14360v2): checks and dispatch."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.dispatch import REFERENCE, Backends, full_precision, why_no_ampere
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.m2rnn.gpu.plan import why_refused
from archsearch.kernels.m2rnn.reference import m2rnn_by_hand
from archsearch.kernels.packing import pad, state_shape, unpad
from archsearch.kernels.steps import check_clip

BACKENDS = Backends("m2rnn", {"triton": why_no_ampere})


def m2rnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    forget: Tensor,
    *,
    initial_state: Tensor | None = None,
    gradient_clip: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return `y_t = H_t^T q_t` and the final state of `H_t = f_t H_{t-1} + (1 - f_t) tanh(H_{t-1} W + k_t v_t^T)`.

    `q` `[B, T, Nq, K]`, `k` `[B, T, Nk, K]`, `v` `[B, T, Nv, V]`, `weight` `[Nw, V, V]`, `forget` `[B, T, Nf]` in
    [0, 1]: every head count divides the largest, N, and head n reads head n // (N / count) of each.
    `initial_state` `[B, N, K, V]` (one row per document when packed), zeros when None. `gradient_clip` bounds each
    element of the gradient that is carried from one step to the one before.
    Returns y `[B, T, N, V]` and the final state `[B, N, K, V]` in at least float32. Raises ValueError.
    """
    num_heads = _check(q, k, v, weight, forget)
    shape = state_shape(q, cu_seqlens, (num_heads, k.shape[-1], v.shape[-1]), initial_state)
    check_clip(gradient_clip)
    refusal = why_refused(q, v)
    if BACKENDS.choose(backend, q, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.m2rnn.gpu.custom_op import m2rnn_triton  # Triton has no build for some platforms

        return m2rnn_triton(q, k, v, weight, forget, initial_state, gradient_clip, cu_seqlens)

    given, dtype = v.dtype, torch.promote_types(v.dtype, torch.float32)
    if cu_seqlens is not None:  # a step after a document's end leaves its state as it is: f = 1
        q, k, v, forget = pad(q, cu_seqlens), pad(k, cu_seqlens), pad(v, cu_seqlens), pad(forget, cu_seqlens, 1.0)
    state = q.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    q, k, v, forget = (expand_heads(x, num_heads).to(dtype) for x in (q, k, v, forget))
    weight = expand_heads(weight, num_heads, dim=0).to(dtype)
    with full_precision(q):
        y, final = m2rnn_by_hand(q, k, v, weight, forget, state, gradient_clip)
    y = y.to(given)
    return (y if cu_seqlens is None else unpad(y, cu_seqlens)), final


def _check(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor) -> int:
    if q.shape[-1] != k.shape[-1] or weight.shape[1:] != (v.shape[-1],) * 2:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkvW", (q, k, v, weight), strict=True))
        raise ValueError(f"q and k must share the key head dim, v and W the value head dim; got {shapes}")
    if not q.shape[:2] == k.shape[:2] == v.shape[:2] == forget.shape[:2]:
        shapes = ", ".join(f"{name} {tuple(x.shape[:2])}" for name, x in zip("qkvf", (q, k, v, forget), strict=True))
        raise ValueError(f"q, k, v and f must share batch and length; got {shapes}")
    counts = [q.shape[2], k.shape[2], v.shape[2], forget.shape[2], weight.shape[0]]
    if any(max(counts) % count for count in counts):
        raise ValueError(f"every head count must divide the largest; got q, k, v, f, W = {counts}")
    return max(counts)
