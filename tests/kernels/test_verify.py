"""A library's kernels are checked at a head shape before their first use."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from archsearch.kernels import verify

INPUTS = {"x": torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), "scale": torch.full((5,), 1.5)}


def right(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale


class Halved(torch.autograd.Function):
    """The right output with half of the gradient."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, dy):  # noqa: ARG004
        return dy / 2


def test_a_right_kernel_is_not_complained_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verify.why_wrong("shape", right, right, INPUTS) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, scale: x * scale + 0.15 * x.detach(), r"the output is off by 10%"),
        (lambda x, scale: right(Halved.apply(x), scale), r"the gradient of x is off by 50%"),
        (lambda x, scale: x * scale + torch.nan, r"the output is off by inf%"),
    ],
)
def test_a_wrong_output_or_gradient_is_named_and_warned_of(wrong, message: str) -> None:
    with pytest.warns(verify.WrongKernelWarning, match=f"wrong at 2 heads of 3 .*{message}.*reference runs instead"):
        reason = verify.why_wrong("2 heads of 3", wrong, right, INPUTS)
    assert reason is not None
    assert reason.startswith("its kernels are wrong at 2 heads of 3")


def test_a_check_runs_once_and_again_after_tuning() -> None:
    seen = []

    @verify.once
    def check(size: int) -> str | None:
        seen.append(size)
        return verify.why_wrong("shape", lambda x, scale: 2 * right(x, scale), right, INPUTS)

    with verify.trust():
        assert check(1) is None  # nothing is compared while kernels are tuned
    with pytest.warns(verify.WrongKernelWarning):
        assert check(1) == check(1)
    assert seen == [1, 1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_a_check_breaks_no_graph() -> None:
    @verify.once
    def check(size: int) -> str | None:
        return verify.why_wrong(f"{size}", right, right, INPUTS)

    def function(x: Tensor) -> Tensor:
        return x * 2 if check(x.shape[0]) is None else x

    torch._dynamo.reset()
    assert torch.compile(function, fullgraph=True, backend="eager")(torch.ones(3)).tolist() == [2, 2, 2]
