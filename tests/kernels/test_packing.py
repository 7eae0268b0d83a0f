from __future__ import annotations

import torch

from archsearch.kernels.packing import pad, unpad


def test_documents_are_padded_to_the_longest_and_back() -> None:
    x, bounds = torch.arange(1.0, 7.0).reshape(1, 6, 1), torch.tensor([0, 1, 4, 6])
    rows = pad(x, bounds, value=-1.0)
    assert rows[..., 0].tolist() == [[1, -1, -1], [2, 3, 4], [5, 6, -1]]
    assert torch.equal(unpad(rows, bounds), x)


def test_padding_carries_no_gradient() -> None:
    x, bounds = torch.ones(1, 5, 2, requires_grad=True), torch.tensor([0, 1, 5])
    (gradient,) = torch.autograd.grad(pad(x, bounds).sum(), x)
    assert torch.equal(gradient, torch.ones(1, 5, 2))
