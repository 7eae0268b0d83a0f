from __future__ import annotations

import math

import pytest
import torch

from archsearch.kernels.linear_cross_entropy.op import linear_cross_entropy


def test_the_loss_is_the_mean_over_scored_targets_in_at_least_float32() -> None:
    x, weight = torch.tensor([[1.0, 0.0], [0.0, 3.0], [5.0, 5.0]]), torch.eye(2)
    targets = torch.tensor([0, 0, -100])
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(3))) / 2
    assert linear_cross_entropy(x, weight, targets).item() == pytest.approx(expected)
    assert linear_cross_entropy(x.bfloat16(), weight.bfloat16(), targets).dtype == torch.float32
    assert linear_cross_entropy(x.double(), weight.double(), targets).dtype == torch.float64


def test_a_row_that_is_not_scored_gets_no_gradient() -> None:
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    (dx,) = torch.autograd.grad(linear_cross_entropy(x, weight, torch.tensor([2, -100, 0])), x)
    assert (dx[1] == 0).all()
    assert (dx[0] != 0).all()
