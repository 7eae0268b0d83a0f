"""M²RNN: a nonlinear recurrence with a matrix-valued state (Mishra et al., arXiv:2603.14360v2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.m2rnn.op import BACKENDS, m2rnn
from archsearch.mixers.common import (
    Decay,
    DecayOptions,
    Mixer,
    NonlinearOptions,
    SplitLinear,
    State,
    check_head_counts,
    check_packed,
    check_positive,
)
from archsearch.registry import register


@dataclass(frozen=True, kw_only=True)
class M2RNNOptions(DecayOptions, NonlinearOptions):
    """Head counts and shapes of an M²RNN mixer; the published form shares one query and key among all value heads.

    Counts left out: `num_query_heads` and `num_key_heads` are 1, all others `num_heads`, the number of states. The
    short convolution and `activation` are those of q, k and v.
    """

    num_heads: int = 4
    key_head_dim: int = 16
    value_head_dim: int = 16
    num_query_heads: int = 1
    num_key_heads: int = 1
    num_value_heads: int | None = None
    num_forget_heads: int | None = None
    num_weight_heads: int | None = None
    num_gate_heads: int | None = None
    residual: bool = True

    def counts(self) -> dict[str, int]:
        """Return the number of heads of q, k, v, f, w and g."""
        own = (self.num_value_heads, self.num_forget_heads, self.num_weight_heads, self.num_gate_heads)
        filled = [self.num_heads if count is None else count for count in own]
        return dict(zip("qkvfwg", (self.num_query_heads, self.num_key_heads, *filled), strict=True))

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        check_positive(num_heads=self.num_heads, key_head_dim=self.key_head_dim, value_head_dim=self.value_head_dim)
        check_head_counts(self.num_heads, self.counts())

    def widths(self) -> dict[str, int]:
        """Return how many channels of the input projection each of q, k, v, f and g takes."""
        counts, key, value = self.counts(), self.key_head_dim, self.value_head_dim
        return {
            "q": counts["q"] * key,
            "k": counts["k"] * key,
            "v": counts["v"] * value,
            "f": counts["f"],
            "g": counts["g"] * value,
        }

    @property
    def conv_channels(self) -> int:
        """Channels that pass the short convolution: q, k and v."""
        widths = self.widths()
        return widths["q"] + widths["k"] + widths["v"] if self.conv_width else 0

    def num_parameters(self, hidden_size: int) -> int:
        counts, inner = self.counts(), self.num_heads * self.value_head_dim
        projections = hidden_size * (sum(self.widths().values()) + inner)
        recurrence = counts["w"] * self.value_head_dim**2 + 2 * counts["f"] + self.residual * inner
        return projections + recurrence + self.conv_channels * (self.conv_width or 0) + inner

    def state_size(self, hidden_size: int) -> int:
        return self.num_heads * self.key_head_dim * self.value_head_dim

    def cache_size(self, hidden_size: int, length: int) -> int:
        return self.conv_channels * ((self.conv_width or 1) - 1)

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        projections = hidden_size * (sum(self.widths().values()) + self.num_heads * self.value_head_dim)
        recurrence = self.state_size(hidden_size) * (self.value_head_dim + 2)  # H W, k v^T, H^T q
        return 2 * (projections + self.conv_channels * (self.conv_width or 0) + recurrence)


@register("m2rnn", options=M2RNNOptions, letters="M")
class M2RNN(Mixer):
    """Project, convolve, recur, add `w_r * v`, gate by `silu(g)`, RMSNorm over all heads, project out."""

    backends = BACKENDS
    no_weight_decay = frozenset({"residual_weight"})

    def __init__(self, options: M2RNNOptions, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.counts = options.counts()
        value, inner = options.value_head_dim, options.num_heads * options.value_head_dim
        self.widths = options.widths()
        self.in_proj = SplitLinear(hidden_size, [sum(self.widths[name] for name in part) for part in ("qkv", "f", "g")])
        self.conv = options.short_conv([self.widths[name] for name in "qkv"])
        self.decay = Decay(self.counts["f"], options)
        self.weight = nn.Parameter(torch.empty(self.counts["w"], value, value))
        self.residual_weight = nn.Parameter(torch.ones(options.num_heads, value)) if options.residual else None
        self.norm = nn.RMSNorm(inner, eps=norm_eps)
        self.out_proj = nn.Linear(inner, hidden_size, bias=False)
        self.reset_parameters(0.02, 0.02)

    @torch.no_grad()
    def reset_parameters(self, init_std: float, output_std: float) -> None:
        super().reset_parameters(init_std, output_std)
        self.options.draw_weight(self.weight)
        if self.residual_weight is not None:
            nn.init.ones_(self.residual_weight)

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        state = state or {}
        qkv, a, g = self.in_proj(x)
        new_state: State = {}
        if self.conv is not None:
            parts, new_state["conv"] = self.conv(qkv, state.get("conv"), cu_seqlens, self.backend_around)
        else:
            parts = (functional.silu(qkv) if self.options.activation == "silu" else qkv).split(
                [self.widths[name] for name in "qkv"], dim=-1
            )
        q, k, v = (part.unflatten(-1, (self.counts[name], -1)) for name, part in zip("qkv", parts, strict=True))
        v = expand_heads(v, self.options.num_heads)  # even where only the gate has that many heads
        y, new_state["recurrent"] = m2rnn(
            q,
            k,
            v,
            self.weight,
            self.decay(a)[1].exp(),
            initial_state=state.get("recurrent"),
            gradient_clip=self.options.gradient_clip,
            cu_seqlens=cu_seqlens,
            backend=self.backend,
        )
        y = gated_rms_norm(
            y,
            self.norm.weight,
            self.norm.eps or 0.0,
            gate=expand_heads(g.unflatten(-1, (self.counts["g"], -1)), self.options.num_heads),
            skip=None if self.residual_weight is None else v,
            skip_weight=self.residual_weight,
            backend=self.backend_around,
        )
        return self.out_proj(y), (new_state if cu_seqlens is None else None)
