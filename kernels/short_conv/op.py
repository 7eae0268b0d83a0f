"""Causal depthwise convolution over time, the short filter in front of a recurrence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, why_no_triton
from archsearch.kernels.packing import document_starts, pad, unpad

BACKENDS = Backends("short_conv", {"triton": why_no_triton})

WIDEST = 4  # taps of the kernels' filters
MOST_PARTS = 3  # that the kernels write each to memory of its own


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    widths: Sequence[int] | None = None,
    silu: bool = True,
    taps: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Convolve each channel of `x` `[B, T, C]` with its filter in `weight` `[C, W]`, looking back only; then SiLU.

    `taps` `[B, W - 1, C]` are the inputs before the first (zeros when None). Returns the output in parts of `widths`
    channels (one part where None), which the kernels write each to memory of its own, and the taps to go on from;
    packed documents start from zeros and give no taps to go on from.
    """
    widths = [x.shape[2]] if widths is None else list(widths)
    refusal = _why_refused(x, weight, taps)
    if BACKENDS.choose(backend, x, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.short_conv.gpu.custom_op import short_conv_triton  # Triton lacks on some platforms

        starts = None if cu_seqlens is None else document_starts(cu_seqlens, x.shape[1])
        parts = widths if len(widths) <= MOST_PARTS else [x.shape[2]]
        outputs = short_conv_triton(x, weight, bias, taps, starts, silu, parts)
        if parts is not widths:
            outputs = torch.split(outputs[0], widths, dim=2)
        return outputs, _last(x, weight.shape[1] - 1, taps)

    channels, width = weight.shape
    rows = x if cu_seqlens is None else pad(x, cu_seqlens)
    inputs = torch.cat([_before(rows, width - 1) if taps is None else taps, rows], dim=1)
    filters = weight[:, None].to(x.dtype)
    offset = None if bias is None else bias.to(x.dtype)
    y = functional.conv1d(inputs.transpose(1, 2), filters, offset, groups=channels).transpose(1, 2)
    if cu_seqlens is not None:
        y = unpad(y, cu_seqlens)
    return torch.split(functional.silu(y) if silu else y, widths, dim=2), _last(x, width - 1, taps)


def _last(x: Tensor, count: int, taps: Tensor | None) -> Tensor:
    """Return the last `count` inputs `[B, count, C]`, the taps' own where `x` is shorter."""
    if x.shape[1] >= count:
        return x[:, x.shape[1] - count :]
    return torch.cat([_before(x, count) if taps is None else taps, x], dim=1)[:, x.shape[1] :]


def _before(x: Tensor, count: int) -> Tensor:
    return x.new_zeros(x.shape[0], count, x.shape[2])


def _why_refused(x: Tensor, weight: Tensor, taps: Tensor | None) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its kernels take bfloat16, float16 or float32; got {str(x.dtype).removeprefix('torch.')}"
    if weight.shape[1] > WIDEST:
        return f"its kernels take filters of up to {WIDEST} taps; got {weight.shape[1]}"
    if 0 in x.shape:
        return f"its kernels take no empty tensors; got {tuple(x.shape)}"
    if taps is not None and taps.requires_grad and torch.is_grad_enabled():
        return "its kernels have no gradient of the taps"
    return None
