"""Heads that share: one head of queries, keys, gates or weights read by several states."""

from __future__ import annotations

from torch import Tensor


def expand_heads(x: Tensor, num_heads: int, dim: int = 2) -> Tensor:
    """Repeat the heads along `dim` so that of `num_heads` heads, n holds what head n // (num_heads / count) held."""
    count = x.shape[dim]
    return x if count == num_heads else x.repeat_interleave(num_heads // count, dim)
