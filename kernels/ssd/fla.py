"""The state-space recurrence of Mamba-2 by flash-linear-attention's Triton kernels.

It has none of its own, but its gated linear attention with q = C, k = B, v = x dt is the same recurrence.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def why_refused(x: Tensor) -> str | None:
    """Return why these inputs (`x` `[B, T, H, P]`) rule the kernels out, or None."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 or float16; got {str(x.dtype).removeprefix('torch.')}"
    return None


def ssd_fla(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what `ssd_loop` does; `state` has one row per document where `cu_seqlens` bounds them."""
    from fla.ops.simple_gla import chunk_simple_gla

    y, final = chunk_simple_gla(
        c, b, x, log_decay, scale=1.0, initial_state=state, output_final_state=True, cu_seqlens=cu_seqlens
    )
    return cast(Tensor, y), cast(Tensor, final)
