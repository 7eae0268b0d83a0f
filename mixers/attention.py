"""Causal softmax attention, grouped-query, with or without rotary positions and a sliding window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archsearch.kernels.attention.op import BACKENDS, attention
from archsearch.kernels.packing import document_starts
from archsearch.kernels.rotary.op import rotate
from archsearch.mixers.common import Mixer, State, check_packed, check_positive
from archsearch.registry import MixerOptions, register


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(MixerOptions):
    """Head counts and shapes of an attention mixer.

    Left out, `num_kv_heads` is `num_heads` and `head_dim` is hidden_size / num_heads. `rope` turns queries and keys
    by their position in the document (Su et al., arXiv:2104.09864); without, recurrent layers tell the positions.
    With a `window`, a token sees itself and the window - 1 before it, and no more than those are kept.
    """

    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope: bool = False
    rope_theta: float = 10000.0
    window: int | None = None

    def check(self, hidden_size: int) -> None:
        check_positive(num_heads=self.num_heads, num_kv_heads=self.kv_heads, rope_theta=self.rope_theta)
        if self.window is not None:
            check_positive(window=self.window)
        if self.head_dim is not None:
            check_positive(head_dim=self.head_dim)
        elif hidden_size % self.num_heads:
            got = f"num_heads={self.num_heads} and {hidden_size}"
            raise ValueError(f"num_heads must divide the hidden size where no head_dim is given; got {got}")
        if self.num_heads % self.kv_heads:
            got = f"num_kv_heads={self.kv_heads} and num_heads={self.num_heads}"
            raise ValueError(f"num_kv_heads must divide num_heads; got {got}")
        if self.rope and self.width(hidden_size) % 2:
            raise ValueError(f"rope needs an even head_dim; got {self.width(hidden_size)}")

    @property
    def kv_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def width(self, hidden_size: int) -> int:
        """Return the dimension of one head."""
        return self.head_dim or hidden_size // self.num_heads

    def num_parameters(self, hidden_size: int) -> int:
        return 2 * hidden_size * (self.num_heads + self.kv_heads) * self.width(hidden_size)

    def cache_size(self, hidden_size: int, length: int) -> int:
        kept = length if self.window is None else min(length, self.window - 1)
        return 2 * kept * self.kv_heads * self.width(hidden_size)

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        most = length if self.window is None else min(length, self.window)
        seen = most - most * (most - 1) / (2 * length)  # keys that a query looks at, on average
        scores_and_values = 2 * self.num_heads * self.width(hidden_size) * seen
        return 2 * (self.num_parameters(hidden_size) + scores_and_values)


@register("attention", options=AttentionOptions, letters="A")
class Attention(Mixer):
    """Project to q, k, v, turn q and k where `rope` says so, attend to what came before, project out."""

    backends = BACKENDS

    def __init__(self, options: AttentionOptions, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.head_dim = options.width(hidden_size)
        inner = options.num_heads * self.head_dim
        self.in_proj = nn.Linear(hidden_size, inner + 2 * options.kv_heads * self.head_dim, bias=False)
        self.out_proj = nn.Linear(inner, hidden_size, bias=False)
        self.reset_parameters(0.02, 0.02)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        heads = self.in_proj(x).unflatten(-1, (-1, self.head_dim))
        heads_q, heads_kv = self.options.num_heads, self.options.kv_heads
        window, rope, theta = self.options.window, self.options.rope, self.options.rope_theta
        positions = _positions(x, state, cu_seqlens)
        qk, v = heads.split([heads_q + heads_kv, heads_kv], dim=2)
        if rope and window is None:
            qk = rotate(qk, positions[-x.shape[1] :], theta, backend=self.backend_around)
        q, k = qk.split([heads_q, heads_kv], dim=2)
        if state is not None:
            k, v = torch.cat([state["key"], k], dim=1), torch.cat([state["value"], v], dim=1)
        new_state = {"key": _last(k, window), "value": _last(v, window)} if cu_seqlens is None else None
        if rope and window is not None:  # only distances count: from the oldest key that is kept, no place is lost
            q = rotate(q, positions[-x.shape[1] :], theta, backend=self.backend_around)
            k = rotate(k, positions, theta, backend=self.backend_around)
        y = attention(q, k, v, window=window, cu_seqlens=cu_seqlens, backend=self.backend)
        return self.out_proj(y.flatten(-2)), new_state


def _positions(x: Tensor, state: State | None, cu_seqlens: Tensor | None) -> Tensor:
    """Return the position of each cached and each new token: from 0 in every packed document, else from the oldest."""
    cached = 0 if state is None else state["key"].shape[1]
    positions = torch.arange(cached + x.shape[1], device=x.device)
    if cu_seqlens is None:
        return positions
    return positions - document_starts(cu_seqlens, x.shape[1])


def _last(x: Tensor, window: int | None) -> Tensor:
    """Return the keys or values `[B, S, H, D]` that a later token can see."""
    if window is None or x.shape[1] < window:
        return x
    return x[:, x.shape[1] - window + 1 :].clone()  # a view would keep everything before it in memory
