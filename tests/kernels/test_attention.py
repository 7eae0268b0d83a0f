from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.kernels.attention import varlen
from archsearch.kernels.attention.op import MIN_BLOCK, attention
from archsearch.kernels.packing import read_documents
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


def by_document(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, _: Tensor, longest: int, *__: int, **options: Any
) -> Tensor:
    """Do what PyTorch's `varlen_attn` says it does, of which there is no build for CPUs."""
    assert bounds.dtype == torch.int32
    assert bounds.diff().max() <= longest
    assert options["enable_gqa"] == (q.shape[1] != k.shape[1])
    before, after = options["window_size"]
    assert after == 0
    window = len(q) if before < 0 else before + 1
    rows = [banded(*(x[None, i:j] for x in (q, k, v)), window)[0] for i, j in pairwise(bounds.tolist())]
    return torch.cat(rows)


@pytest.mark.parametrize("window", [None, 1, 7, 300])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_kernels_for_packed_documents_are_asked_for_the_same(
    monkeypatch: pytest.MonkeyPatch, window: int | None, kv_heads: int
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_document)
    monkeypatch.setattr(varlen, "_name_of_sharing", lambda: "enable_gqa")
    q, k, v = (x[:1] for x in (draw(200, 4, 0), draw(200, kv_heads, 1), draw(200, kv_heads, 2)))
    documents = read_documents(torch.tensor([0, 3, 4, 170, 200]), 200, q.device)
    actual = varlen.attend_within(q, k, v, documents, window)
    torch.testing.assert_close(actual, attention(q, k, v, window=window, cu_seqlens=documents.bounds))


@pytest.mark.parametrize(
    ("dim", "dtype", "packed", "message"),
    [
        (64, torch.bfloat16, False, "it is for packed documents"),
        (64, torch.float32, True, "bfloat16 or float16; got float32"),
        (12, torch.bfloat16, True, "multiples of 8, up to 256; got 12"),
        (264, torch.float16, True, "multiples of 8, up to 256; got 264"),
    ],
)
def test_what_those_kernels_cannot_do_is_refused_by_name(
    dim: int, dtype: torch.dtype, packed: bool, message: str
) -> None:
    x = torch.zeros(1, 10, 2, dim, dtype=dtype)
    assert varlen.why_refused(torch.zeros(1, 10, 2, 64, dtype=torch.bfloat16), packed=True) is None
    with pytest.raises(ValueError, match=f"attention: backend 'varlen' cannot be used: .*{message}"):
        attention(x, x, x, cu_seqlens=torch.tensor([0, 10]) if packed else None, backend="varlen")
