from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from archsearch.kernels.attention.op import MIN_BLOCK, attention
from tests.largest import Largest


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


def banded(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attend by a whole mask, head by head."""
    new, total, share = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    distance = torch.arange(total - new, total)[:, None] - torch.arange(total)
    hidden = (distance < 0) | (distance >= window)
    heads = []
    for head in range(q.shape[2]):
        scores = q[:, :, head] @ k[:, :, head // share].mT / q.shape[3] ** 0.5
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, :, head // share])
    return torch.stack(heads, dim=2)


@pytest.mark.parametrize(("new", "total"), [(1, 1), (1, 9), (5, 5), (4, 9), (300, 300), (MIN_BLOCK + 1, 200)])
@pytest.mark.parametrize("window", [1, 2, 5, 64, 150, 299, 300, 1000])
def test_a_window_hides_what_is_further_back(new: int, total: int, window: int) -> None:
    leaves = [x.requires_grad_() for x in (draw(new, 4, 0), draw(total, 2, 1), draw(total, 2, 2))]
    actual, expected = attention(*leaves, window=window), banded(*leaves, window=window)
    torch.testing.assert_close(actual, expected)
    upstream = draw(new, 4, 3)
    torch.testing.assert_close(
        torch.autograd.grad(actual, leaves, upstream), torch.autograd.grad(expected, leaves, upstream)
    )


def test_a_window_does_not_reach_into_the_document_before() -> None:
    bounds = [0, 3, 4, 170, 200]
    q, k, v = (x[:1] for x in (draw(200, 4, 0), draw(200, 2, 1), draw(200, 2, 2)))
    alone = [banded(q[:, i:j], k[:, i:j], v[:, i:j], 7) for i, j in pairwise(bounds)]
    torch.testing.assert_close(attention(q, k, v, window=7, cu_seqlens=torch.tensor(bounds)), torch.cat(alone, dim=1))


@pytest.mark.parametrize("window", [None, 16, 300])
def test_no_tensor_holds_every_pair_of_tokens(window: int | None) -> None:
    length = 2000
    q, k, v = (torch.randn(1, length, 1, 8, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        attention(q, k, v, window=window).sum().backward()
    blocks = max(MIN_BLOCK, (window or 0) // 2)
    assert largest.elements <= max(length * 8, blocks * (blocks + (window or 0)))
    assert largest.elements < length**2 / 20


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be positive; got 0"):
        attention(draw(4, 4, 0), draw(4, 4, 1), draw(4, 4, 2), window=0)
