"""One letter of a pattern: a mixer and an MLP, each behind a norm and beside a residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from archsearch import mlp_registry, registry
from archsearch.architecture import Architecture, Layer
from archsearch.mixers.common import Mixer, State
from archsearch.model.mlp.auxiliary import collect_auxiliary_losses, innermost
from archsearch.model.mlp.common import MLP

GRAPHS = 64  # of blocks that differ in structure, shapes, or whether gradients are wanted

Outputs = tuple[Tensor, State | None, list[Tensor]]


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`.

    With `activation_checkpointing` only the input is kept for the backward pass, which computes the rest once more.
    With a `compile_backend` (of torch.compile) a block runs as one translated graph, except on packed documents.
    """

    def __init__(self, architecture: Architecture, layer: Layer) -> None:
        super().__init__()
        hidden_size, eps = architecture.hidden_size, architecture.norm_eps
        self.mixer_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mixer: Mixer = registry.get(layer.type).module(layer.options, hidden_size, norm_eps=eps)  # type: ignore[assignment]
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mlp: MLP = mlp_registry.get(layer.mlp.type).module(layer.mlp.options, hidden_size)  # type: ignore[assignment]
        self.activation_checkpointing = False
        self.compile_backend: str | None = None

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        """Return the hidden states `[B, T, D]` and what the mixer remembers."""
        around = innermost()
        again = self.activation_checkpointing and torch.is_grad_enabled()
        run: Callable[..., Outputs] = run_block
        if self.compile_backend is not None and cu_seqlens is None:  # bounds are read on the CPU: graphs would break
            run = _compiled(self.compile_backend, again)
        arguments = self, x, state, cu_seqlens, None if around is None else around.scored
        if again:
            x, state, losses = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            x, state, losses = run(*arguments)
        if around is not None:
            around.losses += losses
        return x, state


def run_block(
    block: Block, x: Tensor, state: State | None, cu_seqlens: Tensor | None, scored: Tensor | None
) -> Outputs:
    """Return a block's outputs and its MLP's auxiliary losses over the `scored` tokens.

    It changes nothing outside: neither a second run for the backward pass nor a translated graph may.
    """
    mixed, state = block.mixer(block.mixer_norm(x), state, cu_seqlens)
    x = x + mixed
    with collect_auxiliary_losses(scored) as auxiliary:
        x = x + block.mlp(block.mlp_norm(x))
    return x, state, auxiliary.losses


@cache
def _compiled(backend: str, again: bool) -> Callable[..., Outputs]:
    """Return one function for all blocks: those of the same structure share its graphs, and none stays in a module."""
    config: Any = torch._dynamo.config
    config.recompile_limit = max(GRAPHS, config.recompile_limit)
    # where a block is to run again every shape has its own graph: of two that fit, the second run may take the other
    compiled: Any = torch.compile(run_block, backend=backend, dynamic=False if again else None)
    return compiled  # type: ignore[no-any-return]
