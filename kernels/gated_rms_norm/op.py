"""What follows a recurrence: its skip connection, the gate and RMSNorm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, why_no_triton

BACKENDS = Backends("gated_rms_norm", {"triton": why_no_triton})

WIDEST = 16384  # channels of a norm: they have to fit into the registers of one program


def gated_rms_norm(
    y: Tensor,
    weight: Tensor,
    eps: float,
    *,
    gate: Tensor | None = None,
    skip: Tensor | None = None,
    skip_weight: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return RMSNorm of `(y + skip_weight skip) silu(gate)` with its heads side by side, `[B, T, H V]`.

    `y`, `gate` and `skip` are `[B, T, H, V]`, `skip_weight` is `[H, V]`. `weight` holds V numbers for a norm of each
    head, H V for one norm over all. Computed in at least float32. Raises ValueError.
    """
    heads, width = y.shape[2:]
    if weight.shape not in ((width,), (heads * width,)):
        raise ValueError(f"the norm's weight must have {width} or {heads * width} numbers; got {tuple(weight.shape)}")
    refusal = _why_refused(y, weight)
    if BACKENDS.choose(backend, y, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.gated_rms_norm.gpu.custom_op import gated_rms_norm_triton  # some platforms lack Triton

        return gated_rms_norm_triton(y, weight, gate, skip, skip_weight, eps)

    if skip is not None:
        assert skip_weight is not None
        y = y + skip_weight * skip
    if gate is not None:
        y = y * functional.silu(gate)
    groups = y.reshape(*y.shape[:2], -1, weight.shape[0])
    return functional.rms_norm(groups.to(weight.dtype), weight.shape, weight, eps).flatten(-2)


def _why_refused(y: Tensor, weight: Tensor) -> str | None:
    if y.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its kernels take bfloat16, float16 or float32; got {str(y.dtype).removeprefix('torch.')}"
    if weight.shape[0] > WIDEST:
        return f"its kernels take norms of up to {WIDEST} channels; got {weight.shape[0]}"
    if 0 in y.shape:
        return f"its kernels take no empty tensors; got {tuple(y.shape)}"
    return None
