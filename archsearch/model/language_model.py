"""The language model around the blocks."""

from __future__ import annotations

import math

from torch import Tensor, nn

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.mixers.common import State
from archsearch.model.block import Block


class HybridLM(nn.Module):
    """Embedding, the blocks of a pattern, a final RMSNorm and a head, all without biases."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        if architecture.vocab_size is None:
            raise ConfigError("vocab_size is required to build a model; the data or the architecture gives it")
        self.architecture = architecture
        hidden_size = architecture.hidden_size
        self.embedding = nn.Embedding(architecture.vocab_size, hidden_size)
        self.blocks = nn.ModuleList(Block(architecture, layer) for layer in architecture.layers)
        self.norm = nn.RMSNorm(hidden_size, eps=architecture.norm_eps)
        self.head = nn.Linear(hidden_size, architecture.vocab_size, bias=False)
        if architecture.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights: normal(0, init_std), projections back into the residual scaled by 1 / sqrt(2 layers)."""
        init_std = self.architecture.init_std
        output_std = init_std / math.sqrt(2 * len(self.blocks))
        nn.init.normal_(self.embedding.weight, std=init_std)
        nn.init.normal_(self.head.weight, std=init_std)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.mixer.reset_parameters(init_std, output_std)
            block.mlp.reset_parameters(init_std, output_std)

    def forward(
        self,
        tokens: Tensor,
        states: list[State] | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        last_only: bool = False,
    ) -> tuple[Tensor, list[State] | None]:
        """Return logits `[B, T, vocabulary]` for `tokens` `[B, T]`, and one state per layer to go on from.

        `cu_seqlens` `[documents + 1]` bounds packed documents over the B x T tokens laid end to end, so every row's
        start is a bound; documents do not see each other and no states are returned. `last_only` computes the logits
        `[B, 1, vocabulary]` of each row's last position alone.
        """
        x = self.embedding(tokens)
        if cu_seqlens is not None:
            x = x.reshape(1, -1, x.shape[-1])
        new_states: list[State] = []
        for i, block in enumerate(self.blocks):
            x, state = block(x, states[i] if states else None, cu_seqlens)
            if state is not None:
                new_states.append(state)
        x = x.reshape(*tokens.shape, -1)
        logits = self.head(self.norm(x[:, -1:] if last_only else x))
        return logits, (new_states if cu_seqlens is None else None)
