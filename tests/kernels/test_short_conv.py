from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from archsearch.kernels.short_conv.op import short_conv


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("silu", [True, False])
def test_each_output_sums_its_channels_last_inputs(width: int, silu: bool) -> None:
    x, weight, bias = torch.randn(2, 6, 3), torch.randn(3, width), torch.randn(3)
    (y,), taps = short_conv(x, weight, bias, silu=silu)
    for t in range(6):
        expected = bias.clone()
        for back in range(min(width, t + 1)):
            expected = expected + weight[:, width - 1 - back] * x[1, t - back]
        torch.testing.assert_close(y[1, t], functional.silu(expected) if silu else expected)
    assert torch.equal(taps, x[:, 6 - (width - 1) :])


def test_taps_of_a_sequence_shorter_than_the_filter_keep_what_came_before() -> None:
    x, weight = torch.randn(1, 5, 2), torch.randn(2, 4)
    (whole,), last = short_conv(x, weight)
    taps, outputs = None, []
    for t in range(5):
        (y,), taps = short_conv(x[:, t : t + 1], weight, taps=taps)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole)
    torch.testing.assert_close(taps, last)
