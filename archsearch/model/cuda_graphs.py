"""Blocks recorded as CUDA graphs: a training step of many small launches is no longer bound by the CPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from archsearch.model.block import Block

WARM_UP = 3  # passes before recording: compilation, tuned configurations and checks of kernels have to be done


class Recorded(nn.Module):
    """A block as a function of the terms of its hidden states alone, which is what a graph can hold."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the terms `[B, T, D]` of the hidden states behind the block."""
        x, update, _ = self.block(x, update)
        return x, update


def record(blocks: list[Block], x: Tensor) -> list[Recorded]:
    """Record forward and backward of each block for hidden states like `x` `[B, T, D]`, in the autocast at hand.

    What is recorded reads the weights where they lie, so an optimizer may change them, and keeps its inputs, outputs
    and gradients: memory for about one more forward pass. Only for rows that are no packed documents.
    """
    recorded = [Recorded(block) for block in blocks]
    autocast = torch.is_autocast_enabled("cuda")
    cast = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=autocast, cache_enabled=False)
    with cast, _no_garbage_collected():
        terms = [(x,), *[_terms(recorded[0], x)] * (len(blocks) - 1)]
        samples = tuple(tuple(torch.randn_like(term, requires_grad=True) for term in given) for given in terms)
        torch.cuda.make_graphed_callables(tuple(recorded), samples, num_warmup_iters=WARM_UP)
    return recorded


def _terms(block: Recorded, x: Tensor) -> tuple[Tensor, ...]:
    """Return hidden states like those behind a block, made beside the default stream, as warming up does.

    What autograd remembers of the default stream would tie it to the stream that is recorded.
    """
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        terms = tuple(term.detach() for term in block(x))
    torch.cuda.synchronize()
    return terms


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Collect garbage now and not before the end: a model that is freed while a graph is recorded would spoil it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
