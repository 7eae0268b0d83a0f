"""What only a training step needs, on a GPU: the loss without logits, and the experts' grouped products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archsearch.kernels.dispatch import calls
from archsearch.kernels.grouped_linear.op import grouped_linear
from archsearch.kernels.linear_cross_entropy.op import BACKENDS, linear_cross_entropy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(sum(shape)), device="cuda")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("rows", "vocabulary"), [(7, 264), (3000, 1000), (12_000, 100_352)])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_and_its_gradients_without_logits(rows: int, vocabulary: int, autocast: bool) -> None:
    if reason := BACKENDS.missing()["fla"]:
        pytest.skip(reason)
    dtype = torch.float32 if autocast else torch.bfloat16
    x, weight = normal(rows, 256).bfloat16(), (0.05 * normal(vocabulary, 256)).bfloat16()
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    targets[::3] = -100
    leaves = [part.to(dtype).requires_grad_() for part in (x, weight)]
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = linear_cross_entropy(*leaves, targets, backend="fla")
    actual = torch.autograd.grad(2 * loss, leaves)
    exact = [part.double().requires_grad_() for part in (x, weight)]
    expected_loss = linear_cross_entropy(*exact, targets, backend="reference")
    expected = torch.autograd.grad(2 * expected_loss, exact)
    assert abs(loss.item() - expected_loss.item()) < 1e-3
    assert [part.dtype for part in actual] == [dtype, dtype]
    assert max(relative_error(a, b) for a, b in zip(actual, expected, strict=True)) < 1e-2


@pytest.mark.parametrize("counts", [[5, 0, 64, 3], [0, 0, 1, 0], [1000, 24, 0, 300]])
def test_grouped_products_and_their_gradients(counts: list[int]) -> None:
    x, weight = normal(sum(counts), 64).bfloat16(), normal(4, 48, 64).bfloat16()
    sizes = torch.tensor(counts, device="cuda")
    before = calls["grouped_linear", "grouped_mm"]
    leaves = [part.requires_grad_() for part in (x, weight)]
    y = grouped_linear(*leaves, sizes)
    assert calls["grouped_linear", "grouped_mm"] == before + 1
    exact = [part.detach().double().requires_grad_() for part in leaves]
    expected = grouped_linear(*exact, sizes, backend="reference")
    dy = normal(*y.shape).bfloat16()
    actual = [y, *torch.autograd.grad(y, leaves, dy)]
    wanted = [expected, *torch.autograd.grad(expected, exact, dy.double())]
    assert max(relative_error(a, b) for a, b in zip(actual, wanted, strict=True)) < 1e-2
