"""The state-space recurrence on a GPU: its kernels against the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from archsearch.kernels.dispatch import calls, why_no_ampere
from archsearch.kernels.ssd.op import ssd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:(?i).*deterministic"),  # of products and sums, asked for the NaNs alone
    pytest.mark.skipif(why_no_ampere() is not None, reason=str(why_no_ampere())),
]
if why_no_ampere() is None:
    from tests.kernels.ssd_cases import GPU, LIMITS, Case, errors, kernels

    CASES = GPU
else:
    CASES = ()


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_states_and_gradients(case: Case, dtype: torch.dtype) -> None:
    found = errors(case, "cuda", dtype)
    assert max(found.values()) <= LIMITS[dtype], found


def test_the_op_takes_the_kernels_and_two_runs_give_the_same_bits() -> None:
    given = Case(heads=8, head_dim=19, state_dim=20).draw("cuda", torch.bfloat16)

    def step() -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given.values()]
        y, final = ssd(*leaves, backend="triton")
        return [y, final, *torch.autograd.grad(y.float().square().sum() + final.sum(), leaves)]

    before = calls["ssd", "triton"]
    once, again = step(), step()
    assert calls["ssd", "triton"] == before + 2
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_offsets_of_more_than_31_bits() -> None:
    heads, head_dim, tail = 64, 64, 200
    steps = 2**31 // (heads * head_dim) + tail
    given = Case(heads=heads, head_dim=head_dim, state_dim=16, steps=steps).draw("cuda", torch.bfloat16)
    given["log_decay"][:, -tail] = -200.0  # what comes after knows nothing of what was before
    leaves = [x.requires_grad_() for x in given.values()]
    last = [x[:, -tail:].detach().requires_grad_() for x in leaves]
    y, alone = (ssd(*inputs, backend="triton")[0] for inputs in (leaves, last))
    dy = torch.randn_like(alone)
    torch.testing.assert_close(y[:, -tail:], alone, rtol=2e-2, atol=2e-2)
    whole = torch.autograd.grad((y[:, -tail:] * dy).sum(), leaves)
    for a, b in zip(whole, torch.autograd.grad((alone * dy).sum(), last), strict=True):
        a = a[:, -tail + 1 :].float()
        assert (a - b[:, 1:].float()).norm() <= 2e-2 * a.norm()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_torch_compile_breaks_no_graph() -> None:
    given = list(Case().draw("cuda", torch.bfloat16).values())
    torch._dynamo.reset()
    compiled = torch.compile(kernels, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*given), kernels(*given), strict=True):
        assert torch.equal(a, b)
