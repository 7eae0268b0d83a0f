"""The gated recurrent unit with heads: a vector state per head (Cho et al., arXiv:1406.1078)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from archsearch.kernels.gru.op import BACKENDS, gru
from archsearch.mixers.rnn import RNN, RNNOptions
from archsearch.registry import register


@dataclass(frozen=True, kw_only=True)
class GRUOptions(RNNOptions):
    """Head counts and size of a GRU mixer; counts left out are `num_heads`, the number of states.

    The inputs of the forget and reset gate go into the recurrence as they are projected: as with RNNOptions, x alone
    passes the convolution, and every head has its own x, gates, output gate and weights, or the published sizes
    (arXiv:2603.14360v2) are missed.
    """

    num_forget_input_heads: int | None = None
    num_reset_input_heads: int | None = None
    num_forget_weight_heads: int | None = None
    num_reset_weight_heads: int | None = None

    def inputs(self) -> dict[str, int]:
        gates = {"forget": self._heads(self.num_forget_input_heads), "reset": self._heads(self.num_reset_input_heads)}
        return {**super().inputs(), **gates}

    def weights(self) -> dict[str, int]:
        forget, reset = self._heads(self.num_forget_weight_heads), self._heads(self.num_reset_weight_heads)
        return {**super().weights(), "forget_weight": forget, "reset_weight": reset}


@register("gru", options=GRUOptions, letters="U")
class GRU(RNN):
    """Project, convolve x, recur, gate by `silu(g)`, RMSNorm over all heads, project out."""

    backends = BACKENDS
    forget_weight: nn.Parameter
    reset_weight: nn.Parameter

    def recur(self, inputs: list[Tensor], state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        x, forget, reset = inputs
        return gru(
            x,
            forget,
            reset,
            self.weight,
            self.forget_weight,
            self.reset_weight,
            initial_state=state,
            gradient_clip=self.options.gradient_clip,
            cu_seqlens=cu_seqlens,
            backend=self.backend,
        )
