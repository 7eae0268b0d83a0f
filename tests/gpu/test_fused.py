"""The fused passes around a recurrence on a GPU, against their float64 reference."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
if torch.cuda.is_available():
    from tests.kernels.fused_cases import LIMITS, AddCase, Case, ConvCase, NormCase, RotaryCase, errors, gpu_cases

    CASES = gpu_cases()
else:
    CASES = []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients(case: Case) -> None:
    found = errors(case, "cuda")
    assert max(found.values()) <= LIMITS[case.dtype], found


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_torch_compile_breaks_no_graph() -> None:
    for case in (ConvCase(bias=True), NormCase(), AddCase(dtype=torch.bfloat16), RotaryCase()):
        given = [None if x is None else x.contiguous() for x in case.draw("cuda")]
        torch._dynamo.reset()
        compiled = torch.compile(case.kernels, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*given), case.kernels(*given))
