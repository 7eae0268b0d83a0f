"""A linear map per group of rows: the matrix products of a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import Backends

BACKENDS = Backends("grouped_linear")  # a grouped matrix product on the GPU would go here


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor, *, backend: str = "auto") -> Tensor:
    """Return `x_i @ weight_e^T` `[M, O]` for each row i of `x` `[M, D]`, e being its group.

    The rows are sorted by group: the first `counts[0]` belong to group 0, and so on; `weight` is `[E, O, D]`, `counts`
    `[E]`, of int64, sums to M. Only groups with rows cost anything. Raises ValueError.
    """
    if x.ndim != 2 or weight.ndim != 3 or weight.shape[2] != x.shape[1] or counts.shape != weight.shape[:1]:
        shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, counts {tuple(counts.shape)}"
        raise ValueError(f"x [M, D], weight [E, O, D] and counts [E] must fit; got {shapes}")
    BACKENDS.choose(backend, x)
    return _group_by_group(x, weight, counts)


def _group_by_group(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    sizes = counts.tolist()
    if sum(sizes) != x.shape[0]:
        raise ValueError(f"counts must sum to the number of rows, {x.shape[0]}; got {sum(sizes)}")
    # split and unbind once: indexing per group would make a gradient of the whole tensor for each
    groups = zip(torch.split(x, sizes), weight.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in groups if rows.shape[0]])
