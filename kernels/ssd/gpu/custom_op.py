"""The state-space recurrence by flash-linear-attention, as an op of torch.library.

It has none of its own, but its gated linear attention with q = C, k = B, v = x dt is the same recurrence. Its kernels
take one B and C per head: the heads of a group get copies, which live inside the op only.
"""

from __future__ import annotations

from typing import Any

import torch
from fla.ops.simple_gla.chunk import chunk_simple_gla_bwd, chunk_simple_gla_fwd
from fla.ops.utils import chunk_local_cumsum
from fla.ops.utils.constant import RCP_LN2
from fla.ops.utils.index import prepare_chunk_indices
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.fla import use_tuned
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.library import define_op

use_tuned()

CHUNK = 64  # steps
PADDED_STATE, PADDED_HEAD = 64, 32  # dims are padded with zeros to multiples: smaller ones are computed wrong


def ssd_fla(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what `ssd` does, which checks the inputs; the state is float32, products are in x's dtype."""
    state_dim, head_dim = b.shape[-1], x.shape[-1]
    more_state, more_head = -state_dim % PADDED_STATE, -head_dim % PADDED_HEAD
    if more_state:  # no padding at all would still copy
        b, c = (functional.pad(part, (0, more_state)) for part in (b, c))
    if more_head:
        x = functional.pad(x, (0, more_head))
    b, c, x = (part.to(x.dtype).contiguous() for part in (b, c, x))
    log_decay = log_decay.float().contiguous()
    if initial_state is not None:
        initial_state = functional.pad(initial_state.float(), (0, more_head, 0, more_state)).contiguous()
    y, state, _ = _forward(x, log_decay, b, c, initial_state, cu_seqlens)
    return y[..., :head_dim], state[..., :state_dim, :head_dim]


@define_op("ssd_forward")
def _forward(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the final state, and for the gradient the decays summed within chunks."""
    heads, chunks = x.shape[2], _chunks(cu_seqlens)
    with full_precision(x):
        decays = chunk_local_cumsum(
            log_decay, chunk_size=CHUNK, scale=RCP_LN2, cu_seqlens=cu_seqlens, chunk_indices=chunks
        )
        y, state = chunk_simple_gla_fwd(
            expand_heads(c, heads), expand_heads(b, heads), x, decays, None, 1.0, initial_state, True,
            cu_seqlens=cu_seqlens, chunk_size=CHUNK, chunk_indices=chunks,
        )  # fmt: skip
    return y.to(x.dtype), state, decays


@_forward.register_fake
def _(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = x.new_empty(sequences, x.shape[2], b.shape[3], x.shape[3], dtype=torch.float32)
    return torch.empty_like(x), state, torch.empty_like(log_decay)


@define_op("ssd_backward")
def _backward(
    x: Tensor, decays: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    dy: Tensor, dstate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, the log decays, B, C and the initial state."""
    heads, groups, chunks = x.shape[2], b.shape[2], _chunks(cu_seqlens)
    with full_precision(x):
        dc, db, dx, ddecay, dstate_0 = chunk_simple_gla_bwd(
            expand_heads(c, heads), expand_heads(b, heads), x, decays, None, initial_state, dy, dstate, 1.0,
            cu_seqlens=cu_seqlens, chunk_size=CHUNK, chunk_indices=chunks,
        )  # fmt: skip
        ddecay = chunk_local_cumsum(ddecay, chunk_size=CHUNK, reverse=True, cu_seqlens=cu_seqlens, chunk_indices=chunks)
    db, dc = (part.unflatten(2, (groups, heads // groups)).sum(3, dtype=torch.float32) for part in (db, dc))
    dstate_0 = x.new_empty(0, dtype=torch.float32) if initial_state is None else dstate_0.to(initial_state.dtype)
    return dx.to(x.dtype), ddecay.to(decays.dtype), db.to(b.dtype), dc.to(c.dtype), dstate_0


@_backward.register_fake
def _(
    x: Tensor, decays: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    dy: Tensor, dstate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dstate_0 = x.new_empty(0, dtype=torch.float32) if initial_state is None else torch.empty_like(initial_state)
    return torch.empty_like(x), torch.empty_like(decays), torch.empty_like(b), torch.empty_like(c), dstate_0


def _chunks(cu_seqlens: Tensor | None) -> Tensor | None:
    chunks: Tensor | None = None if cu_seqlens is None else prepare_chunk_indices(cu_seqlens, CHUNK)
    return chunks


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, b, c, initial_state, cu_seqlens = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, output[2], b, c, initial_state, cu_seqlens)


def _differentiate(ctx: Any, dy: Tensor | None, dstate: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, decays, b, c, initial_state, cu_seqlens = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy.contiguous()
    dstate = None if dstate is None else dstate.contiguous()
    dx, ddecay, db, dc, dstate_0 = _backward(x, decays, b, c, initial_state, cu_seqlens, dy, dstate)
    return dx, ddecay, db, dc, None if initial_state is None else dstate_0, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
