"""The gated delta rule by flash-linear-attention's Triton kernels."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

MAX_KEY_HEAD_DIM = 256


def why_refused(q: Tensor) -> str | None:
    """Return why these inputs (`q` `[B, T, H, K]`) rule the kernels out, or None."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 or float16; got {str(q.dtype).removeprefix('torch.')}"
    if q.shape[-1] > MAX_KEY_HEAD_DIM:
        return f"it takes a key head dim of at most {MAX_KEY_HEAD_DIM}; got {q.shape[-1]}"
    return None


def gated_delta_rule_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return what `gated_delta_rule_loop` does; `state` has one row per document where `cu_seqlens` bounds them."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    y, final = chunk_gated_delta_rule(
        q, k, v, log_decay, beta, scale, initial_state=state, output_final_state=True, cu_seqlens=cu_seqlens
    )
    return cast(Tensor, y), cast(Tensor, final)
