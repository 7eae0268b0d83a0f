"""The state-space recurrence of Mamba-2 (Dao and Gu, arXiv:2405.21060): checks and dispatch."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.dispatch import REFERENCE, Backends, full_precision
from archsearch.kernels.fla import why_unavailable
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.packing import pad, state_shape, unpad
from archsearch.kernels.ssd.chunk import ssd_chunked
from archsearch.kernels.ssd.reference import ssd_loop

BACKENDS = Backends("ssd", {"fla": why_unavailable})

LOOP_UP_TO = 8  # steps; below, a loop is cheaper than a chunk


def ssd(
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return `y_t = h_t^T C_t` and the final state of `h_t = a_t h_{t-1} + B_t x_t^T`.

    `x` `[B, T, H, P]` with dt multiplied in, `log_decay` (log a_t = -alpha dt_t <= 0) `[B, T, H]`, `b` and `c`
    `[B, T, G, N]`: G divides H and head h reads group h // (H / G). `initial_state` `[B, H, N, P]` (one row per
    document when packed), zeros when None. The skip `D x` is the caller's.
    Returns y `[B, T, H, P]` and the final state `[B, H, N, P]` in at least float32. Raises ValueError.
    """
    _check(x, log_decay, b, c)
    num_heads = x.shape[2]
    shape = state_shape(x, cu_seqlens, (num_heads, b.shape[-1], x.shape[-1]), initial_state)
    refusal = _why_refused(x, b, cu_seqlens is not None)
    if BACKENDS.choose(backend, x, {"fla": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.ssd.gpu.custom_op import ssd_fla  # fla imports Triton

        return ssd_fla(x, log_decay, b, c, initial_state, cu_seqlens)

    dtype = torch.promote_types(x.dtype, torch.float32)
    state = x.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    b, c = expand_heads(b, num_heads), expand_heads(c, num_heads)
    given = x.dtype
    x, log_decay, b, c = (part.to(dtype) for part in (x, log_decay, b, c))
    if cu_seqlens is not None:  # a step after a document's end leaves its state as it is: a = 1, x = 0
        x, log_decay, b, c = (pad(part, cu_seqlens) for part in (x, log_decay, b, c))
    run = ssd_loop if x.shape[1] <= LOOP_UP_TO else ssd_chunked
    with full_precision(x):
        y, final = run(x, log_decay, b, c, state)
    y = y.to(given)
    return (y if cu_seqlens is None else unpad(y, cu_seqlens)), final


def _why_refused(x: Tensor, b: Tensor, packed: bool) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"its kernels take bfloat16 or float16; got {str(x.dtype).removeprefix('torch.')}"
    if x.shape[1] <= LOOP_UP_TO or 0 in (*x.shape, *b.shape):
        return f"its kernels take more than {LOOP_UP_TO} steps; got {x.shape[1]}"
    if not x.is_cuda or why_unavailable():
        return None  # said elsewhere
    from archsearch.kernels.ssd.gpu.verify import why_wrong

    return why_wrong(x.shape[2], b.shape[2], x.shape[3], b.shape[3], x.dtype, packed)


def _check(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor) -> None:
    if b.shape != c.shape or x.shape[2] % b.shape[2]:
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip("xBC", (x, b, c), strict=True))
        raise ValueError(f"B and C must have one shape, and their groups must divide x's heads; got {shapes}")
    if log_decay.shape != x.shape[:3]:
        raise ValueError(f"log_decay must have shape {tuple(x.shape[:3])}; got {tuple(log_decay.shape)}")
