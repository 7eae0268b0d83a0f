from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archsearch.kernels.attention.op import attention


def draw(length: int, heads: int, seed: int) -> Tensor:
    return torch.randn(2, length, heads, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("new", "total"), [(1, 1), (5, 5), (1, 6), (4, 9)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_each_query_weighs_the_values_up_to_its_own(new: int, total: int, kv_heads: int) -> None:
    q, k, v = draw(new, 4, 0), draw(total, kv_heads, 1), draw(total, kv_heads, 2)
    y = attention(q, k, v)
    for head in range(4):
        for t in range(new):
            seen, source = total - new + t + 1, head // (4 // kv_heads)
            weights = (k[1, :seen, source] @ q[1, t, head] / 3**0.5).softmax(0)
            torch.testing.assert_close(y[1, t, head], weights @ v[1, :seen, source])


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"and their heads divide q's; got q \(2, 4, 4, 3\), k \(2, 4, 3, 3\)"):
        attention(draw(4, 4, 0), draw(4, 3, 1), draw(4, 3, 2))
    with pytest.raises(ValueError, match="no shorter than q"):
        attention(draw(4, 4, 0), draw(3, 4, 1), draw(3, 4, 2))
