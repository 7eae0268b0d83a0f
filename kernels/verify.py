"""Check kernels of chunks where they are about to run: a compiler may get one of their shapes wrong without an error.

On Hopper, triton 3.7.1 did so with some of flash-linear-attention's (gated delta rule, key 32 with value 64) and of our
own (Mamba-2, head dim 32 with state 64). A head shape is checked once a process, on the machine at hand, before its
first use.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from archsearch.kernels.dispatch import constant, full_precision

LIMIT = 5e-2  # ||a - b|| / ||b||: rounding to bfloat16 gives 5e-3, a wrong kernel 2e-2 to 1
STEPS = 130  # two chunks and a rest


Check = Callable[..., str | None]

_checks: list[Any] = []
_trusted = False


class WrongKernelWarning(UserWarning):
    """A kernel gives wrong results on this machine and is not used."""


def once(check: Check) -> Check:
    """Make a check of a head shape run once a process."""
    cached = functools.cache(check)
    _checks.append(cached)

    @constant  # torch.compile looks through functools.cache, but not into what is marked
    @functools.wraps(check)
    def known(*shape: Any) -> str | None:
        return cached(*shape)

    return known


@contextmanager
def trust() -> Iterator[None]:
    """Check nothing within: while kernels are tuned they are run with choices that are not made yet."""
    global _trusted
    _trusted = True
    try:
        yield
    finally:
        _trusted = False
        for check in _checks:
            check.cache_clear()


def why_wrong(
    what: str, fast: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: Mapping[str, Tensor]
) -> str | None:
    """Return why `fast` must not run `what`, and warn; None where output and gradients are `exact`'s in float64."""
    if _trusted:
        return None
    with torch.inference_mode(False), torch.enable_grad():
        actual = _results(fast, {name: x.detach().clone() for name, x in inputs.items()})
        expected = _results(exact, {name: x.detach().double() for name, x in inputs.items()})
    errors = {
        name: ((actual[name].double() - x).norm() / x.norm()).nan_to_num(torch.inf).item()
        for name, x in expected.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] <= LIMIT:
        return None
    reason = f"its kernels are wrong at {what} on this machine ({worst} is off by {errors[worst]:.0%})"
    warnings.warn(f"{reason}; the PyTorch reference runs instead", WrongKernelWarning, stacklevel=2)
    return reason


def normal(*shape: int) -> Tensor:
    """Return the same normal numbers every time, and leave the global generator alone."""
    return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(sum(shape)), device="cuda")


def _results(function: Callable[..., Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = [x.requires_grad_() for x in inputs.values()]
    with full_precision(leaves[0]):
        y = function(*leaves)
    dy = torch.linspace(-1, 1, y.numel(), device=y.device).sin().view(y.shape).to(y.dtype)
    gradients = torch.autograd.grad(y, leaves, dy)
    return {"the output": y, **{f"the gradient of {name}": x for name, x in zip(inputs, gradients, strict=True)}}
