"""What stands between the parts of a block: the sum of the residual stream and an update, and its RMSNorm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, why_no_triton

BACKENDS = Backends("add_rms_norm", {"triton": why_no_triton})

WIDEST = 16384  # channels: they have to fit into the registers of one program


def add_rms_norm(
    x: Tensor, update: Tensor | None, weight: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return `x + update` and `RMSNorm(x + update)`, both shaped as `x` and `update` `[..., D]`; `weight` is `[D]`.

    The sum has the wider of their dtypes; without an update it is x itself. The norm is computed in at least float32.
    The kernels give it in the dtype that autocast would cast it to for a matrix product.
    """
    dtype = x.dtype if update is None else torch.promote_types(x.dtype, update.dtype)
    refusal = _why_refused(x, dtype, weight)
    if BACKENDS.choose(backend, x, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.add_rms_norm.gpu.custom_op import add_rms_norm_triton  # some platforms lack Triton

        autocast = torch.is_autocast_enabled("cuda")
        return add_rms_norm_triton(x, update, weight, eps, torch.get_autocast_dtype("cuda") if autocast else dtype)

    if update is not None:
        x = x + update
    return x, functional.rms_norm(x, weight.shape, weight, eps)


def _why_refused(x: Tensor, dtype: torch.dtype, weight: Tensor) -> str | None:
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its kernels take bfloat16, float16 or float32; got {str(dtype).removeprefix('torch.')}"
    if weight.shape[0] > WIDEST:
        return f"its kernels take norms of up to {WIDEST} channels; got {weight.shape[0]}"
    if 0 in x.shape:
        return f"its kernels take no empty tensors; got {tuple(x.shape)}"
    return None
