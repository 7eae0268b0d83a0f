"""Causal softmax attention by PyTorch: scaled_dot_product_attention, and varlen_attn for packed documents."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from archsearch.kernels.attention.varlen import attend_within, why_refused, why_unavailable
from archsearch.kernels.dispatch import REFERENCE, Backends
from archsearch.kernels.packing import documents_of, laid_out, pad, unpad

BACKENDS = Backends("attention", {"varlen": why_unavailable})

MIN_BLOCK = 128  # queries: fewer make more calls than a short window saves products


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `[B, T, H, D]`: query t of T looks at the keys up to its own, the last T of S being those of the queries.

    `q` `[B, T, H, D]`, `k` and `v` `[B, S, Hkv, D]` with S >= T and Hkv dividing H (query head n reads key head
    n // (H / Hkv)). With a `window` a query looks at the last `window` of those keys, its own included, in memory that
    grows with T x window. Packed documents (S = T) do not see each other. Raises ValueError.
    """
    if k.shape != v.shape or q.shape[2] % k.shape[2] or k.shape[1] < q.shape[1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkv", (q, k, v), strict=True))
        raise ValueError(f"k and v must have one shape, no shorter than q, and their heads divide q's; got {shapes}")
    if window is not None and window < 1:
        raise ValueError(f"window must be positive; got {window}")
    documents = None if cu_seqlens is None else documents_of(cu_seqlens, q)
    refusal = why_refused(q, documents is not None)
    chosen = BACKENDS.choose(backend, q, {"varlen": refusal} if refusal else None)
    if documents is None:
        return _attend(q, k, v, window)
    if chosen != REFERENCE:
        return attend_within(q, k, v, documents, window)
    with laid_out(documents):
        q, k, v = (pad(x, documents.bounds) for x in (q, k, v))
        return unpad(_attend(q, k, v, window), documents.bounds)


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    new, total = q.shape[1], k.shape[1]
    if window is not None and window < total:
        return _attend_in_blocks(q, k, v, window)
    if new == total:
        return _softmax_attention(q, k, v, None, is_causal=True)
    mask = None
    if new > 1:  # is_causal would align the first query with the first key
        mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
    return _softmax_attention(q, k, v, mask)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attend block by block of queries, each to the keys that some query of the block looks at."""
    before, size = k.shape[1] - q.shape[1], max(MIN_BLOCK, window // 2)
    outputs = []
    for block in torch.split(q, size, dim=1):
        stop = before + block.shape[1]
        start = max(0, before - window + 1)
        band = _band(block.shape[1], stop - start, window, q.device)
        outputs.append(_softmax_attention(block, k[:, start:stop], v[:, start:stop], band))
        before = stop
    return torch.cat(outputs, dim=1)


def _band(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Return which of the `keys` each of the last `queries` looks at, `[queries, keys]` bool."""
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) & (distance < window)


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool = False) -> Tensor:
    y = scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=is_causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return y.transpose(1, 2)
