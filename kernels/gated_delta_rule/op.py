"""The gated delta rule (Yang et al., arXiv:2412.06464): checks and dispatch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, full_precision
from archsearch.kernels.fla import why_unavailable
from archsearch.kernels.gated_delta_rule.chunk import gated_delta_rule_chunked
from archsearch.kernels.gated_delta_rule.reference import gated_delta_rule_loop
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.packing import documents_of, pad, state_shape, unpad

BACKENDS = Backends("gated_delta_rule", {"fla": why_unavailable})

LOOP_UP_TO = 8  # steps; below, a loop is cheaper than a chunk
WIDEST_KEY = 256  # of fla's kernels


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    normalise: bool = False,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return `y_t = scale S_t^T q_t` and the final state of `S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T`.

    `q`, `k` `[B, T, Nk, K]`, `v` `[B, T, N, V]`, `log_decay` (log a_t <= 0) and `beta` (b_t) `[B, T, N]`; Nk divides N
    and state n reads key head n // (N / Nk). `normalise` divides each q and k by its length first. `initial_state`
    `[B, N, K, V]` (one row per document when packed), zeros when None.
    Returns y `[B, T, N, V]` and the final state `[B, N, K, V]` in at least float32. Raises ValueError.
    """
    _check(q, k, v, log_decay, beta)
    num_heads = v.shape[2]
    shape = state_shape(q, cu_seqlens, (num_heads, k.shape[-1], v.shape[-1]), initial_state)
    refusal = _why_refused(q, v, cu_seqlens is not None)
    if BACKENDS.choose(backend, q, {"fla": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.gated_delta_rule.gpu.custom_op import gated_delta_rule_fla  # fla imports Triton

        documents = None if cu_seqlens is None else documents_of(cu_seqlens, q)
        return gated_delta_rule_fla(q, k, v, log_decay, beta, scale, initial_state, documents, normalise)

    dtype = torch.promote_types(v.dtype, torch.float32)
    state = q.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    given = v.dtype
    q, k, v, log_decay, beta = (x.to(dtype) for x in (q, k, v, log_decay, beta))
    if normalise:  # rounded back, as the kernels do
        q, k = (functional.normalize(x, dim=-1, eps=1e-6).to(given).to(dtype) for x in (q, k))
    if cu_seqlens is not None:  # a step after a document's end leaves its state as it is: a = 1, b = 0
        q, k, v, log_decay, beta = (pad(x, cu_seqlens) for x in (q, k, v, log_decay, beta))
    q, k = expand_heads(q, num_heads), expand_heads(k, num_heads)
    run = gated_delta_rule_loop if q.shape[1] <= LOOP_UP_TO else gated_delta_rule_chunked
    with full_precision(q):
        y, final = run(q, k, v, log_decay, beta, scale, state)
    y = y.to(given)
    return (y if cu_seqlens is None else unpad(y, cu_seqlens)), final


def _why_refused(q: Tensor, v: Tensor, packed: bool) -> str | None:
    if v.dtype not in (torch.bfloat16, torch.float16):
        return f"its kernels take bfloat16 or float16; got {str(v.dtype).removeprefix('torch.')}"
    if q.shape[-1] > WIDEST_KEY:
        return f"its kernels take key head dims up to {WIDEST_KEY}; got {q.shape[-1]}"
    if q.shape[1] <= LOOP_UP_TO or 0 in (*q.shape, *v.shape):
        return f"its kernels take more than {LOOP_UP_TO} steps; got {q.shape[1]}"
    if not q.is_cuda or why_unavailable():
        return None  # said elsewhere
    from archsearch.kernels.gated_delta_rule.gpu.verify import why_wrong

    return why_wrong(q.shape[2], v.shape[2], q.shape[3], v.shape[3], v.dtype, packed)


def _check(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> None:
    if q.shape != k.shape or v.shape[2] % k.shape[2]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkv", (q, k, v), strict=True))
        raise ValueError(f"q and k must have one shape, and their head count must divide v's; got {shapes}")
    if log_decay.shape != v.shape[:3] or beta.shape != v.shape[:3]:
        got = f"{tuple(log_decay.shape)} and {tuple(beta.shape)}"
        raise ValueError(f"log_decay and beta must have shape {tuple(v.shape[:3])}; got {got}")
