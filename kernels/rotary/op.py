"""Rotary position embedding (Su et al., arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.dispatch import REFERENCE, Backends, why_no_triton

BACKENDS = Backends("rotary", {"triton": why_no_triton})


def rotate(x: Tensor, positions: Tensor, theta: float, *, backend: str = "auto") -> Tensor:
    """Turn each pair of channels (i, i + D / 2) of `x` `[B, T, H, D]` by positions `[T]` x theta^(-2 i / D).

    Angles are computed in at least float32.
    """
    refusal = None
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32) or 0 in x.shape:
        got = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        refusal = f"its kernels take non-empty bfloat16, float16 or float32; got {got}"
    if BACKENDS.choose(backend, x, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.rotary.gpu.custom_op import rotate_triton  # some platforms lack Triton

        return rotate_triton(x, positions, theta)
    dtype = torch.promote_types(x.dtype, torch.float32)
    channels = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=dtype)
    angles = positions.to(dtype)[:, None, None] * theta ** (-channels / x.shape[-1])
    first, second = x.to(dtype).chunk(2, dim=-1)
    sin, cos = angles.sin(), angles.cos()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
