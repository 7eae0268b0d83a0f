"""The state-space recurrence of Mamba-2 (Dao and Gu, arXiv:2405.21060): checks and dispatch."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.dispatch import REFERENCE, Backends, full_precision, why_no_ampere
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.packing import document_starts, pad, state_shape, unpad
from archsearch.kernels.ssd.chunk import ssd_chunked
from archsearch.kernels.ssd.reference import ssd_loop

LOOP_UP_TO = 8  # steps; below, a loop is cheaper than a chunk
WIDEST = 128  # head dims of the kernels


BACKENDS = Backends("ssd", {"triton": why_no_ampere})


def ssd(
    x: Tensor,
    dt: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    keep_state: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return `y_t = h_t^T C_t` and the final state of `h_t = a_t h_{t-1} + dt_t B_t x_t^T`.

    `x` `[B, T, H, P]`, `dt` and `log_decay` (log a_t = -alpha dt_t <= 0) `[B, T, H]`, `b` and `c` `[B, T, G, N]`: G
    divides H and head h reads group h // (H / G). `initial_state` `[B, H, N, P]` (one row per document when packed),
    zeros when None. The skip `D x` is the caller's.
    Returns y `[B, T, H, P]` and the final state `[B, H, N, P]` in at least float32, no rows of it unless `keep_state`:
    the kernels know no states of packed documents, and then run only without. Raises ValueError.
    """
    _check(x, dt, log_decay, b, c)
    num_heads = x.shape[2]
    shape = state_shape(x, cu_seqlens, (num_heads, b.shape[-1], x.shape[-1]), initial_state)
    packed = cu_seqlens is not None
    refusal = _why_refused(x, b, packed, packed and (keep_state or initial_state is not None))
    if BACKENDS.choose(backend, x, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.ssd.gpu.custom_op import ssd_triton  # some platforms lack Triton

        starts = None if cu_seqlens is None else document_starts(cu_seqlens, x.shape[1])
        return ssd_triton(x, dt, log_decay, b, c, initial_state, starts, keep_state)

    dtype = torch.promote_types(x.dtype, torch.float32)
    state = x.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    b, c = expand_heads(b, num_heads), expand_heads(c, num_heads)
    given = x.dtype
    x, log_decay, b, c = (part.to(dtype) for part in (x, log_decay, b, c))
    x = x * dt.to(dtype)[..., None]
    if cu_seqlens is not None:  # a step after a document's end leaves its state as it is: a = 1, x = 0
        x, log_decay, b, c = (pad(part, cu_seqlens) for part in (x, log_decay, b, c))
    run = ssd_loop if x.shape[1] <= LOOP_UP_TO else ssd_chunked
    with full_precision(x):
        y, final = run(x, log_decay, b, c, state)
    y = y.to(given)
    return (y if cu_seqlens is None else unpad(y, cu_seqlens)), (final if keep_state else final[:0])


def _why_refused(x: Tensor, b: Tensor, packed: bool, states_of_documents: bool) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"its kernels take bfloat16 or float16; got {str(x.dtype).removeprefix('torch.')}"
    if x.shape[1] <= LOOP_UP_TO or 0 in (*x.shape, *b.shape):
        return f"its kernels take more than {LOOP_UP_TO} steps; got {x.shape[1]}"
    if x.shape[3] > WIDEST:
        return f"its kernels take head dims up to {WIDEST}; got {x.shape[3]}"
    if states_of_documents:
        return "its kernels take and give no states of packed documents (keep_state=False)"
    if not x.is_cuda or why_no_ampere():
        return None  # said elsewhere
    from archsearch.kernels.ssd.gpu.verify import why_wrong

    return why_wrong(x.shape[2], b.shape[2], x.shape[3], b.shape[3], x.dtype, packed)


def _check(x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor) -> None:
    if b.shape != c.shape or x.shape[2] % b.shape[2]:
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip("xBC", (x, b, c), strict=True))
        raise ValueError(f"B and C must have one shape, and their groups must divide x's heads; got {shapes}")
    for name, part in (("dt", dt), ("log_decay", log_decay)):
        if part.shape != x.shape[:3]:
            raise ValueError(f"{name} must have shape {tuple(x.shape[:3])}; got {tuple(part.shape)}")
