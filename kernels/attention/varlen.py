"""Attention within packed documents by PyTorch's `varlen_attn`: flash attention that is told where they begin."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.dispatch import constant, why_old_gpu
from archsearch.kernels.packing import Documents

WIDEST = 256  # of the kernels' heads


def attend_within(q: Tensor, k: Tensor, v: Tensor, documents: Documents, window: int | None) -> Tensor:
    """Return what `attention` does for one packed row `[1, T, H, D]`; key heads may be shared."""
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = documents.bounds.to(torch.int32), documents.longest
    seen = -1 if window is None else window - 1  # before a query's own
    sharing = _name_of_sharing()
    shared = {} if sharing is None else {sharing: q.shape[2] != k.shape[2]}
    attend: Any = varlen_attn
    y: Tensor = attend(q[0], k[0], v[0], bounds, bounds, longest, longest, window_size=(seen, 0), **shared)
    return y[None]


@constant
def why_unavailable() -> str | None:
    """Return why the kernels cannot run on this machine, or None."""
    if reason := why_old_gpu():
        return reason
    if "window_size" not in _arguments():
        return f"torch 2.11 or newer has it; got {torch.__version__}"
    return None


def why_refused(q: Tensor, packed: bool) -> str | None:
    """Return why these inputs (`q` `[B, T, H, D]`) rule the kernels out, or None."""
    if not packed:
        return "it is for packed documents; for other rows PyTorch picks a kernel itself"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"its kernels take bfloat16 or float16; got {str(q.dtype).removeprefix('torch.')}"
    if q.shape[-1] % 8 or q.shape[-1] > WIDEST:
        return f"its kernels take head dims that are multiples of 8, up to {WIDEST}; got {q.shape[-1]}"
    return None


@constant
def _name_of_sharing() -> str | None:
    """Return the argument that has to announce shared key heads, None in releases that share without."""
    return "enable_gqa" if "enable_gqa" in _arguments() else None


@functools.cache
def _arguments() -> frozenset[str]:
    """Return the names of `varlen_attn`'s arguments, none where this torch has no such function."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return frozenset()
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)
