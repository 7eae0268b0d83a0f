"""A linear map per group of rows: the matrix products of a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, constant, opaque, why_old_gpu


@constant
def _why_unavailable() -> str | None:
    if reason := why_old_gpu():
        return reason
    return None if hasattr(functional, "grouped_mm") else "this PyTorch has no grouped matrix product"


BACKENDS = Backends("grouped_linear", {"grouped_mm": _why_unavailable})


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor, *, backend: str = "auto") -> Tensor:
    """Return `x_i @ weight_e^T` `[M, O]` for each row i of `x` `[M, D]`, e being its group.

    The rows are sorted by group: the first `counts[0]` belong to group 0, and so on; `weight` is `[E, O, D]`, `counts`
    `[E]`, of int64, sums to M. Only groups with rows cost anything. Raises ValueError.
    """
    if x.ndim != 2 or weight.ndim != 3 or weight.shape[2] != x.shape[1] or counts.shape != weight.shape[:1]:
        shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, counts {tuple(counts.shape)}"
        raise ValueError(f"x [M, D], weight [E, O, D] and counts [E] must fit; got {shapes}")
    low = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
    refusal = _why_refused(weight, low)
    if BACKENDS.choose(backend, x, {"grouped_mm": refusal} if refusal else None) != REFERENCE:
        ends = counts.cumsum(0, dtype=torch.int32)
        return functional.grouped_mm(x.to(low), weight.to(low).transpose(1, 2), offs=ends)
    return _group_by_group(x, weight, counts)


def _why_refused(weight: Tensor, low: torch.dtype) -> str | None:
    if low != torch.bfloat16:
        return f"grouped matrix products are in bfloat16; got {str(low).removeprefix('torch.')}"
    if weight.shape[1] % 8 or weight.shape[2] % 8:
        return f"grouped matrix products need sizes that 8 divides; got a weight of {tuple(weight.shape)}"
    return None


@opaque
def _group_by_group(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    sizes = counts.tolist()
    if sum(sizes) != x.shape[0]:
        raise ValueError(f"counts must sum to the number of rows, {x.shape[0]}; got {sum(sizes)}")
    # split and unbind once: indexing per group would make a gradient of the whole tensor for each
    groups = zip(torch.split(x, sizes), weight.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in groups if rows.shape[0]])
