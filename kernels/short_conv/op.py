"""Causal depthwise convolution over time, the short filter in front of a recurrence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.packing import pad, unpad


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    silu: bool = True,
    taps: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of `x` `[B, T, C]` with its filter in `weight` `[C, W]`, looking back only; then SiLU.

    `taps` `[B, W - 1, C]` are the inputs before the first (zeros when None). Returns the output `[B, T, C]` and
    the taps to go on from; packed documents start from zeros and give no taps to go on from.
    """
    channels, width = weight.shape
    rows = x if cu_seqlens is None else pad(x, cu_seqlens)
    before = x.new_zeros(rows.shape[0], width - 1, channels) if taps is None else taps
    inputs = torch.cat([before, rows], dim=1)
    filters = weight[:, None].to(x.dtype)
    offset = None if bias is None else bias.to(x.dtype)
    y = functional.conv1d(inputs.transpose(1, 2), filters, offset, groups=channels).transpose(1, 2)
    if cu_seqlens is not None:
        y = unpad(y, cu_seqlens)
    return functional.silu(y) if silu else y, inputs[:, inputs.shape[1] - (width - 1) :]
