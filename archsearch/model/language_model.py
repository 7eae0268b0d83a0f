"""The language model around the blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.kernels.linear_cross_entropy.op import linear_cross_entropy
from archsearch.kernels.packing import Documents, for_graphs, read_documents
from archsearch.mixers.common import State
from archsearch.model.block import AddRMSNorm, Block
from archsearch.model.cuda_graphs import Recorded, record


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
        self.norm = AddRMSNorm(hidden_size, eps=architecture.norm_eps)
        self.head = nn.Linear(hidden_size, architecture.vocab_size, bias=False)
        if architecture.tie_embeddings:
            self.head.weight = self.embedding.weight
        self._recorded: dict[tuple[int, int], list[Recorded]] = {}
        self.reset_parameters()

    @property
    def activation_checkpointing(self) -> bool:
        """Whether every block keeps its input alone for the backward pass and computes the rest once more."""
        return all(block.activation_checkpointing for block in self.blocks)

    @activation_checkpointing.setter
    def activation_checkpointing(self, value: bool) -> None:
        for block in self.blocks:
            assert isinstance(block, Block)
            block.activation_checkpointing = value

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Let torch.compile translate each block when it is first called; names in the state dict stay."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.compile_backend = backend

    def record_blocks(self, batch_size: int, length: int) -> None:
        """Record the blocks as CUDA graphs, in the autocast at hand: training on `[B, T]` tokens then replays them.

        A shape that has been recorded is left as it is. Packed documents, states and evaluation run as before. Raises
        ConfigError where blocks cannot be recorded.
        """
        if (batch_size, length) in self._recorded:
            return
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        if self.activation_checkpointing or any(block.compile_backend for block in blocks):
            raise ConfigError("cuda_graphs: cannot be combined with activation_checkpointing or compile")
        if not self.embedding.weight.is_cuda:
            raise ConfigError("cuda_graphs: needs a CUDA GPU")
        if any(block.mlp.has_auxiliary_loss for block in blocks):
            raise ConfigError("cuda_graphs: an MLP with an auxiliary loss cannot be recorded")
        x = self.embedding.weight.new_zeros(batch_size, length, self.architecture.hidden_size)
        self._recorded[batch_size, length] = record(blocks, x)

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
        targets: Tensor | None = None,
    ) -> tuple[Tensor, list[State] | None]:
        """Return logits `[B, T, vocabulary]` for `tokens` `[B, T]`, and one state per layer to go on from.

        With `targets` `[B, T]`, return their mean cross-entropy in nats in place of the logits, -100 not counted.

        `cu_seqlens` `[documents + 1]` bounds packed documents over the B x T tokens laid end to end, so every row's
        start is a bound; documents do not see each other and no states are returned, nor where blocks recorded as CUDA
        graphs are replayed. The bounds are read on the CPU once: a GPU need not be waited for if they lie there.
        `last_only` computes the logits `[B, 1, vocabulary]` of each row's last position alone.
        """
        x = self.embedding(tokens)
        documents = None
        if cu_seqlens is not None:
            x = x.reshape(1, -1, x.shape[-1])
            documents = self._read_documents(cu_seqlens, tokens)
        new_states: list[State] = []
        replayed = self.training and torch.is_grad_enabled() and states is None and cu_seqlens is None
        recorded = self._recorded.get((tokens.shape[0], tokens.shape[1]), []) if replayed else []
        update: Tensor | None = None
        for replay in recorded:
            x, update = replay(x) if update is None else replay(x, update)
        for i, block in enumerate([] if recorded else self.blocks):
            x, update, state = block(x, update, states[i] if states else None, documents)
            if state is not None:
                new_states.append(state)
        terms = [None if term is None else term.reshape(*tokens.shape, -1) for term in (x, update)]
        if last_only:
            terms = [None if term is None else term[:, -1:] for term in terms]
        x = self.norm(*terms)[1]
        if targets is None:
            result = self.head(x)
        else:
            result = linear_cross_entropy(x.flatten(0, 1), self.head.weight, targets.flatten())
        return result, (None if recorded or cu_seqlens is not None else new_states)

    def _read_documents(self, cu_seqlens: Tensor, tokens: Tensor) -> Documents:
        documents = read_documents(cu_seqlens, tokens.numel(), tokens.device)
        if not any(block.compile_backend for block in self.blocks):
            return documents
        return for_graphs(documents, tokens.shape[1])
