"""The kernels of the vector states on a GPU, against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from archsearch.kernels.dispatch import calls

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
if torch.cuda.is_available():
    from tests.kernels.vector_cases import LIMITS, PARTS, REFERENCE, Case, errors, gpu_cases

    CASES, OPS = gpu_cases(), list(PARTS)
else:
    CASES, OPS = [], []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_states_and_gradients(case: Case) -> None:
    found = errors(case, "cuda")
    assert max(found.values()) <= LIMITS[case.dtype], found


@pytest.mark.parametrize("op", OPS)
def test_auto_takes_the_kernels(op: str) -> None:
    case = Case(op=op, dtype=torch.bfloat16, state=True, bounds=(0, 7, 26))
    *tensors, state, bounds = case.draw("cuda")
    before = calls[op, "triton"]
    y, final = REFERENCE[op](*tensors, initial_state=state, cu_seqlens=bounds)
    assert calls[op, "triton"] == before + 1
    assert (y.dtype, final.dtype, final.shape) == (torch.bfloat16, torch.float32, (2, 2, 16))


@pytest.mark.parametrize("op", OPS)
def test_two_runs_give_the_same_bits(op: str) -> None:
    case = Case(op=op, batch=2, steps=500, heads=9, clip=1.0, state=True, dtype=torch.bfloat16)
    assert errors(case, "cuda") == errors(case, "cuda")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_torch_compile_breaks_no_graph(op: str) -> None:
    case = Case(op=op, dtype=torch.bfloat16, state=True)
    given = [x.contiguous() for x in case.draw("cuda") if x is not None]
    for x in given:
        x.requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(case.kernels, fullgraph=True, backend="aot_eager")
    actual, expected = compiled(*given, None), case.kernels(*given, None)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    gradients = [torch.autograd.grad([y.float().sum() for y in outputs], given) for outputs in (actual, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
