"""The RNN with a vector state per head: checks and dispatch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from archsearch.kernels.dispatch import Backends, why_no_triton
from archsearch.kernels.rnn.reference import rnn_by_hand
from archsearch.kernels.vector_state import run_vector_state

BACKENDS = Backends("rnn", {"triton": why_no_triton})


def rnn(
    x: Tensor,
    weight: Tensor,
    *,
    initial_state: Tensor | None = None,
    gradient_clip: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return every state and the final one of `h_t = tanh(h_{t-1} W + x_t)`.

    `x` `[B, T, Nx, D]`, `weight` `[Nw, D, D]`: each head count divides the larger, N, and head n reads head
    n // (N / count). `initial_state` `[B, N, D]` (one row per document when packed), zeros when None. `gradient_clip`
    bounds each element of the gradient that is carried from one step to the one before.
    Returns y `[B, T, N, D]` and the final state `[B, N, D]` in at least float32. Raises ValueError.
    """
    return run_vector_state(
        rnn_by_hand,
        BACKENDS,
        {"x": x},
        {"W": weight},
        initial_state=initial_state,
        gradient_clip=gradient_clip,
        cu_seqlens=cu_seqlens,
        backend=backend,
        kernels=_kernels,
    )


def _kernels(*arguments: Any) -> tuple[Tensor, Tensor]:
    from archsearch.kernels.rnn.gpu.custom_op import rnn_triton  # Triton has no build for some platforms

    return rnn_triton(*arguments)
