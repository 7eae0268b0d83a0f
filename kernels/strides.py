"""Strided inputs of kernels: slices of a projection are read where they lie instead of being copied."""

from __future__ import annotations

from torch import Tensor


def rows_side_by_side(x: Tensor) -> Tensor:
    """Return `x` `[B, T, ..., D]`, copied only where the elements of one step do not lie side by side."""
    expected = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size > 1 and stride != expected:
            return x.contiguous()
        expected *= size
    return x


def vector_width(*tensors: Tensor) -> int:
    """Return the largest power of two, up to 16 elements, that divides every stride between rows and steps."""
    width = 16
    for stride in (stride for x in tensors for stride in x.stride()[:2]):
        while stride % width:
            width //= 2
    return width
