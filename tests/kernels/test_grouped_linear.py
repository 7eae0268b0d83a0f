from __future__ import annotations

import pytest
import torch

from archsearch.kernels.dispatch import calls
from archsearch.kernels.grouped_linear.op import grouped_linear


@pytest.mark.parametrize("counts", [[2, 0, 3, 1], [0, 0, 0, 1], [6, 0, 0, 0], [1, 1, 1, 1]])
def test_each_row_is_mapped_by_the_matrix_of_its_group(counts: list[int]) -> None:
    x = torch.randn(sum(counts), 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    groups = torch.arange(4).repeat_interleave(torch.tensor(counts))
    y = grouped_linear(x, weight, torch.tensor(counts))
    expected = torch.stack([weight[group] @ row for group, row in zip(groups, x, strict=True)])
    torch.testing.assert_close(y, expected)
    upstream = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, (x, weight), upstream), torch.autograd.grad(expected, (x, weight), upstream)
    )


def test_the_choice_of_backend_is_counted() -> None:
    before = calls.copy()
    grouped_linear(torch.ones(1, 2), torch.ones(1, 3, 2), torch.tensor([1]))
    assert calls - before == {("grouped_linear", "reference"): 1}
    with pytest.raises(ValueError, match="grouped_linear: unknown backend 'abacus'"):
        grouped_linear(torch.ones(1, 2), torch.ones(1, 3, 2), torch.tensor([1]), backend="abacus")


def test_shapes_and_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must fit; got x \(6, 5\), weight \(2, 3, 4\), counts \(2,\)"):
        grouped_linear(torch.ones(6, 5), torch.ones(2, 3, 4), torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="must sum to the number of rows, 6; got 5"):
        grouped_linear(torch.ones(6, 5), torch.ones(2, 3, 5), torch.tensor([3, 2]))
