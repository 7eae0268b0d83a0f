"""Causal softmax attention by PyTorch's scaled_dot_product_attention, which picks its own kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from archsearch.kernels.dispatch import Backends
from archsearch.kernels.packing import check_cu_seqlens, pad, unpad

BACKENDS = Backends("attention")


def attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor | None = None, backend: str = "auto") -> Tensor:
    """Return `[B, T, H, D]`: query t of T looks at the keys up to its own, the last T of S being those of the queries.

    `q` `[B, T, H, D]`, `k` and `v` `[B, S, Hkv, D]` with S >= T and Hkv dividing H (query head n reads key head
    n // (H / Hkv)). Packed documents (S = T) do not see each other. Raises ValueError.
    """
    if k.shape != v.shape or q.shape[2] % k.shape[2] or k.shape[1] < q.shape[1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkv", (q, k, v), strict=True))
        raise ValueError(f"k and v must have one shape, no shorter than q, and their heads divide q's; got {shapes}")
    BACKENDS.choose(backend, q)
    if cu_seqlens is None:
        return _attend(q, k, v)
    check_cu_seqlens(cu_seqlens, q)
    return unpad(_attend(pad(q, cu_seqlens), pad(k, cu_seqlens), pad(v, cu_seqlens)), cu_seqlens)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    new, total = q.shape[1], k.shape[1]
    mask = None
    if 1 < new < total:  # is_causal would align the first query with the first key
        mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
    y = scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=new == total,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return y.transpose(1, 2)
