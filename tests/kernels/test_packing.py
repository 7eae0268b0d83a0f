from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from archsearch.kernels import packing
from archsearch.kernels.packing import (
    Documents,
    chunks_of,
    documents_of,
    for_graphs,
    laid_out,
    pad,
    read_documents,
    stretched,
    unpad,
)


def test_documents_are_padded_to_the_longest_and_back() -> None:
    x, bounds = torch.arange(1.0, 7.0).reshape(1, 6, 1), torch.tensor([0, 1, 4, 6])
    rows = pad(x, bounds, value=-1.0)
    assert rows[..., 0].tolist() == [[1, -1, -1], [2, 3, 4], [5, 6, -1]]
    assert torch.equal(unpad(rows, bounds), x)


def test_padding_carries_no_gradient() -> None:
    x, bounds = torch.ones(1, 5, 2, requires_grad=True), torch.tensor([0, 1, 5])
    (gradient,) = torch.autograd.grad(pad(x, bounds).sum(), x)
    assert torch.equal(gradient, torch.ones(1, 5, 2))


def read(*bounds: int) -> Documents:
    return read_documents(torch.tensor(bounds), bounds[-1], torch.device("cpu"))


def test_documents_hold_what_the_ops_ask_for() -> None:
    documents = read(0, 1, 4, 6)
    assert documents.starts.tolist() == [0, 1, 1, 1, 4, 4]
    assert documents.longest == 3
    assert documents.bounds.dtype == torch.int64


@pytest.mark.parametrize("bounds", [[0], [0, 5], [1, 6], [0, 3, 3, 6], [0, 4, 2, 6]])
def test_bounds_that_do_not_fit_are_refused(bounds: list[int]) -> None:
    message = re.escape(f"cu_seqlens must increase from 0 to the length 6; got {bounds}")
    with pytest.raises(ValueError, match=message):
        read_documents(torch.tensor(bounds), 6, torch.device("cpu"))


def test_bounds_that_are_laid_out_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, documents, same = torch.ones(1, 6, 1), read(0, 1, 4, 6), torch.tensor([0, 1, 4, 6])
    reads: list[Tensor] = []
    monkeypatch.setattr(packing, "read_documents", lambda bounds, *_: reads.append(bounds) or documents)
    with laid_out(documents):
        assert documents_of(documents.bounds, x) is documents
        assert torch.equal(unpad(pad(x, documents.bounds), documents.bounds), x)
        assert not reads
        documents_of(same, x)  # equal, but who knows
        documents_of(documents.bounds, x[:, :5])
    documents_of(documents.bounds, x)
    assert [bounds is documents.bounds for bounds in reads] == [False, True, True]


def test_a_row_of_several_rows_is_refused_wherever_the_bounds_come_from() -> None:
    documents = read(0, 6)
    with laid_out(documents), pytest.raises(ValueError, match="a batch of one packed row; got batch size 2"):
        documents_of(documents.bounds, torch.ones(2, 6, 1))


def test_documents_can_be_stretched() -> None:
    documents, expected = read(0, 1, 4, 6), read(0, 3, 12, 18)
    with laid_out(documents), stretched(documents.bounds, 3) as bounds:
        assert bounds is not None
        actual = documents_of(bounds, torch.ones(1, 18, 1))
        assert torch.equal(actual.bounds, expected.bounds)
        assert torch.equal(actual.on_cpu, expected.on_cpu)
        assert torch.equal(actual.starts, expected.starts)
        assert actual.longest == expected.longest
    with stretched(documents.bounds, 3) as bounds:
        assert torch.equal(bounds, expected.bounds)
    with stretched(documents.bounds, 1) as bounds:
        assert bounds is documents.bounds


def test_chunks_are_counted_in_each_document() -> None:
    bounds = torch.tensor([0, 1, 65, 66, 195])
    chunks = chunks_of(bounds, 64, bounds.device)
    assert chunks.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [3, 1], [3, 2]]
    assert chunks_of(bounds, 64, bounds.device) is chunks  # what the next layer asks for


@pytest.mark.parametrize(
    ("bounds", "row", "longest"), [((0, 5, 9), 100, 8), ((0, 8), 100, 8), ((0, 5, 9), 6, 6), ((0, 9), 6, 9)]
)
def test_graphs_see_a_rounded_length(bounds: tuple[int, ...], row: int, longest: int) -> None:
    assert for_graphs(read(*bounds), row).longest == longest
