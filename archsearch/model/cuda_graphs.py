"""Blocks recorded as CUDA graphs: a training step of many small launches is no longer bound by the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from archsearch.model.block import Block

WARM_UP = 3  # passes before recording: compilation, tuned configurations and checks of kernels have to be done


class Recorded(nn.Module):
    """A block as a function of its hidden states alone, which is what a graph can hold."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states `[B, T, D]` behind the block."""
        y: Tensor = self.block(x)[0]
        return y


def record(blocks: list[Block], x: Tensor) -> list[Recorded]:
    """Record forward and backward of each block for hidden states like `x` `[B, T, D]`, in the autocast at hand.

    What is recorded reads the weights where they lie, so an optimizer may change them, and keeps its inputs, outputs
    and gradients: memory for about one more forward pass. Only for rows that are no packed documents.
    """
    recorded = [Recorded(block) for block in blocks]
    samples = tuple((torch.randn_like(x, requires_grad=True),) for _ in blocks)
    autocast = torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=autocast, cache_enabled=False):
        torch.cuda.make_graphed_callables(tuple(recorded), samples, num_warmup_iters=WARM_UP)
    return recorded
