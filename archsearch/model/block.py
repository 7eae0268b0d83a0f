"""One letter of a pattern: a mixer and an MLP, each behind a norm and beside a residual."""

from __future__ import annotations

from torch import Tensor, nn

from archsearch import mlp_registry, registry
from archsearch.architecture import Architecture, Layer
from archsearch.mixers.common import Mixer, State
from archsearch.model.mlp.common import MLP


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, architecture: Architecture, layer: Layer) -> None:
        super().__init__()
        hidden_size, eps = architecture.hidden_size, architecture.norm_eps
        self.mixer_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mixer: Mixer = registry.get(layer.type).module(layer.options, hidden_size, norm_eps=eps)  # type: ignore[assignment]
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mlp: MLP = mlp_registry.get(layer.mlp.type).module(layer.mlp.options, hidden_size)  # type: ignore[assignment]

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        """Return the hidden states `[B, T, D]` and what the mixer remembers."""
        mixed, state = self.mixer(self.mixer_norm(x), state, cu_seqlens)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state
