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
from archsearch.kernels.add_rms_norm.op import add_rms_norm
from archsearch.kernels.packing import Documents, laid_out
from archsearch.mixers.common import Mixer, State
from archsearch.model.mlp.auxiliary import collect_auxiliary_losses, innermost
from archsearch.model.mlp.common import MLP

GRAPHS = 64  # of blocks that differ in structure, shapes, or whether gradients are wanted

Outputs = tuple[Tensor, Tensor, State | None, list[Tensor]]


class AddRMSNorm(nn.RMSNorm):
    """RMSNorm of a residual stream and the update that it has yet to take."""

    def forward(self, x: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the sum `[..., D]` and its norm."""
        return add_rms_norm(x, update, self.weight, self.eps or 0.0)


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`.

    The last sum is left to whoever norms it next: the next block, or the model's last norm.

    With `activation_checkpointing` only the input is kept for the backward pass, which computes the rest once more.
    With a `compile_backend` (of torch.compile) a block runs as one translated graph.
    """

    def __init__(self, architecture: Architecture, layer: Layer) -> None:
        super().__init__()
        hidden_size, eps = architecture.hidden_size, architecture.norm_eps
        self.mixer_norm = AddRMSNorm(hidden_size, eps=eps)
        self.mixer: Mixer = registry.get(layer.type).module(layer.options, hidden_size, norm_eps=eps)  # type: ignore[assignment]
        self.mlp_norm = AddRMSNorm(hidden_size, eps=eps)
        self.mlp: MLP = mlp_registry.get(layer.mlp.type).module(layer.mlp.options, hidden_size)  # type: ignore[assignment]
        self.activation_checkpointing = False
        self.compile_backend: str | None = None

    def forward(
        self,
        x: Tensor,
        update: Tensor | None = None,
        state: State | None = None,
        documents: Documents | None = None,
    ) -> tuple[Tensor, Tensor, State | None]:
        """Return the two terms `[B, T, D]` of the hidden states and what the mixer remembers.

        `x` `[B, T, D]` and `update`, if any, are the terms that the block before has returned.
        """
        around = innermost()
        again = self.activation_checkpointing and torch.is_grad_enabled()
        run: Callable[..., Outputs] = run_block
        if self.compile_backend is not None:
            run = _compiled(self.compile_backend, again)
        arguments = self, x, update, state, documents, None if around is None else around.scored
        if again:
            x, update, state, losses = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            x, update, state, losses = run(*arguments)
        if around is not None:
            around.losses += losses
        return x, update, state


def run_block(
    block: Block,
    x: Tensor,
    update: Tensor | None,
    state: State | None,
    documents: Documents | None,
    scored: Tensor | None,
) -> Outputs:
    """Return a block's outputs and its MLP's auxiliary losses over the `scored` tokens.

    It changes nothing outside: neither a second run for the backward pass nor a translated graph may.
    """
    x, normed = block.mixer_norm(x, update)
    with laid_out(documents):
        mixed, state = block.mixer(normed, state, None if documents is None else documents.bounds)
    x, normed = block.mlp_norm(x, mixed)
    with collect_auxiliary_losses(scored) as auxiliary:
        update = block.mlp(normed)
    return x, update, state, auxiliary.losses


@cache
def _compiled(backend: str, again: bool) -> Callable[..., Outputs]:
    """Return one function for all blocks: those of the same structure share its graphs, and none stays in a module."""
    config: Any = torch._dynamo.config
    config.recompile_limit = max(GRAPHS, config.recompile_limit)
    # where a block is to run again every shape has its own graph: of two that fit, the second run may take the other
    compiled: Any = torch.compile(run_block, backend=backend, dynamic=False if again else None)
    return compiled  # type: ignore[no-any-return]
