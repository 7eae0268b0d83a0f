"""What the launches of vector-state kernels have in common: tiles by rule, and sums over heads that share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from archsearch.kernels.rnn.gpu.triton_weight_gradient import weight_gradient_kernel

_REGISTERS = 160  # of a thread, that the rows of weights may take
_PART = 1024  # steps whose sum one program of a weight's gradient takes


class Layout(NamedTuple):
    """Where the sequences lie in tensors `[rows, steps, heads, head_dim]`: each a row, or documents of the only one."""

    rows: int
    steps: int
    heads: int
    head_dim: int
    sequences: int
    packed: bool

    @property
    def block(self) -> int:
        """Columns of a tile: a power of two that the tensor cores take."""
        return max(16, 1 << (self.head_dim - 1).bit_length())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.rows, self.steps, self.heads, self.head_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.sequences, self.heads, self.head_dim

    def program(self, weights: int) -> tuple[tuple[int], dict[str, Any]]:
        """Return grid and constants of a kernel that walks through time with the rows of so many weights."""
        heads = max(1, 32 // self.block)  # side by side in one warp
        columns = max(1, self.block // 32)  # of one thread
        steps = max(1, min(4, 96 // (self.block * weights)))  # a turn: more take seconds to compile
        constants = {
            "N": self.heads, "D": self.head_dim, "BD": self.block, "R": heads, "PACKED": self.packed,
            "STEPS": steps, "FETCH": not knobs.runtime.interpret, "RELOAD": self.block * columns * weights > _REGISTERS,
            "num_warps": 1,
        }  # fmt: skip
        return (self.sequences * -(-self.heads // heads),), constants


def layout_of(x: Tensor, heads: int, cu_seqlens: Tensor | None) -> Layout:
    rows, steps, _, head_dim = x.shape
    sequences = rows if cu_seqlens is None else cu_seqlens.numel() - 1
    return Layout(rows, steps, heads, head_dim, sequences, cu_seqlens is not None)


def documents_by_step(cu_seqlens: Tensor | None, steps: int) -> Tensor | None:
    """Return the number of each step's document `[T]` int32."""
    if cu_seqlens is None:
        return None
    numbers = torch.arange(steps, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return (torch.searchsorted(cu_seqlens, numbers, right=True) - 1).int()


def weight_gradient(
    layout: Layout, y: Tensor, initial: Tensor | None, cu_seqlens: Tensor | None,
    documents: Tensor | None, factor: Tensor | None, d: Tensor, weight: Tensor,
) -> Tensor:  # fmt: skip
    """Return the gradient of `weight` `[Nw, D, D]`, in its dtype, from those of its products, `d` `[B, T, N, D]`."""
    size, heads, count = layout.head_dim, layout.heads, weight.shape[0]
    parts = y.new_empty(layout.rows * -(-layout.steps // _PART), heads, size, size, dtype=torch.float32)
    weight_gradient_kernel[(parts.shape[0] * heads,)](
        y, tensor_or(initial, y), tensor_or(cu_seqlens, y), tensor_or(documents, y), tensor_or(factor, y), d,
        parts, layout.steps,
        N=heads, D=size, BD=layout.block, BT=64, PART=_PART, HAS_STATE=initial is not None,
        PACKED=layout.packed, FACTOR=factor is not None, num_warps=4,
    )  # fmt: skip
    return parts.view(-1, count, heads // count, size, size).sum((0, 2)).to(weight.dtype)


def sum_heads(grad: Tensor, count: int) -> Tensor:
    """Sum the gradients `[B, T, N, D]` of heads that read the same of `count` inputs, in float32."""
    if count == grad.shape[2]:
        return grad
    rows, steps, heads, head_dim = grad.shape
    return grad.view(rows, steps, count, heads // count, head_dim).sum(3, dtype=torch.float32).to(grad.dtype)


def tensor_or(x: Tensor | None, other: Tensor) -> Tensor:
    """Return x, or in its place a tensor that a kernel is given and does not read."""
    return other if x is None else x
