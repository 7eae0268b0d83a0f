"""The GRU with a vector state per head (Cho et al., arXiv:1406.1078): checks and dispatch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from archsearch.kernels.dispatch import Backends, why_no_triton
from archsearch.kernels.gru.reference import gru_by_hand
from archsearch.kernels.vector_state import run_vector_state

BACKENDS = Backends("gru", {"triton": why_no_triton})


def gru(
    x: Tensor,
    forget: Tensor,
    reset: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    reset_weight: Tensor,
    *,
    initial_state: Tensor | None = None,
    gradient_clip: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return every state and the final one of `h_t = f_t h_{t-1} + (1 - f_t) tanh((r_t * h_{t-1}) W + x_t)`.

    The gates are `f_t = sigmoid(h_{t-1} W_f + forget_t)` and `r_t = sigmoid(h_{t-1} W_r + reset_t)`. `x`, `forget`,
    `reset` `[B, T, N_, D]` and their weights `[N_, D, D]`: each of the six head counts divides the largest, N, and head
    n reads head n // (N / count). `initial_state` `[B, N, D]` (one row per document when packed), zeros when None.
    `gradient_clip` bounds each element of the gradient that is carried from one step to the one before.
    Returns y `[B, T, N, D]` and the final state `[B, N, D]` in at least float32. Raises ValueError.
    """
    return run_vector_state(
        gru_by_hand,
        BACKENDS,
        {"x": x, "x_f": forget, "x_r": reset},
        {"W": weight, "W_f": forget_weight, "W_r": reset_weight},
        initial_state=initial_state,
        gradient_clip=gradient_clip,
        cu_seqlens=cu_seqlens,
        backend=backend,
        kernels=_kernels,
    )


def _kernels(*arguments: Any) -> tuple[Tensor, Tensor]:
    from archsearch.kernels.gru.gpu.custom_op import gru_triton  # Triton has no build for some platforms

    return gru_triton(*arguments)
