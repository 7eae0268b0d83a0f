"""The M²RNN kernels on a GPU, against the float64 loop; memory that no kernel wrote reads NaN."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from archsearch.kernels.dispatch import calls
from archsearch.kernels.m2rnn.op import m2rnn
from tests.kernels.m2rnn_cases import LIMITS, Case, draw, errors, gpu_cases, loop, relative_error, results

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: the reference's products too

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
    pytest.mark.filterwarnings("ignore:.*deterministic"),  # of the reference, where PyTorch has no such algorithm
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9

PUBLISHED = Case(
    batch=2, steps=300, heads=(1, 1, 12, 12, 12), key=64, value=16, dtype=torch.bfloat16, clip=1.0, initial=True,
    final=True,
)  # fmt: skip
CHAOTIC = "W normal: rounding the state operand grows about fourfold a step and swamps 16 steps"


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    forget: Tensor,
    state: Tensor | None = None,
    clip: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the op, or what is beneath its checks where a document is empty, which they refuse."""
    from archsearch.kernels.m2rnn.gpu.custom_op import m2rnn_triton

    if cu_seqlens is not None and (cu_seqlens.diff() == 0).any():
        return m2rnn_triton(q, k, v, weight, forget, state, clip, cu_seqlens)
    return m2rnn(
        q, k, v, weight, forget, initial_state=state, gradient_clip=clip, cu_seqlens=cu_seqlens, backend="triton"
    )


@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_outputs_states_and_gradients(case: Case) -> None:
    from archsearch.kernels.m2rnn.gpu.custom_op import paths

    paths.clear()
    found = errors(kernels, case, draw(case, "cuda"))
    assert max(found.values()) <= LIMITS[case.dtype], found
    assert paths == {path_of(case): 1}


def path_of(case: Case) -> str:
    if not HOPPER or case.dtype != torch.bfloat16 or case.value > 64 or case.steps < 16:
        return "triton_recurrent"
    return "gluon_tile" if case.value <= 16 else "gluon_wide"


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(
            torch.float32,
            marks=pytest.mark.xfail(raises=AssertionError, reason=CHAOTIC + "; PyTorch's float32 loop errs as much"),
        ),
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.xfail(raises=AssertionError, reason=CHAOTIC + "; a float32 loop stays at 2e-3"),
        ),
    ],
)
def test_a_chaotic_recurrence_over_16_steps(dtype: torch.dtype) -> None:
    case = Case(batch=4, steps=16, heads=(1, 1, 6, 6, 6), key=64, value=16, dtype=dtype, chaotic=True)
    assert max(errors(kernels, case, draw(case, "cuda")).values()) <= LIMITS[dtype]


def test_in_float32_a_chaotic_recurrence_errs_no_more_than_pytorchs_own_loop() -> None:
    case = Case(batch=4, steps=16, heads=(1, 1, 6, 6, 6), key=64, value=16, chaotic=True)
    inputs = draw(case, "cuda")
    ours, pytorch = errors(kernels, case, inputs), errors(loop, case, inputs)
    assert max(ours.values()) <= 5 * max(pytorch.values()), (ours, pytorch)


def test_auto_takes_the_kernels_and_counts_them() -> None:
    before = calls["m2rnn", "triton"]
    q, k, v, w, f, _ = draw(PUBLISHED, "cuda").tensors
    y, final = m2rnn(q, k, v, w, f)
    assert calls["m2rnn", "triton"] == before + 1
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    _, exact = m2rnn(q.double(), k.double(), v.double(), w.double(), f.double())  # float64 is the loop's
    assert calls["m2rnn", "triton"] == before + 1
    assert relative_error(final, exact) < LIMITS[torch.bfloat16]


def test_two_runs_give_the_same_bits() -> None:
    inputs = draw(PUBLISHED, "cuda")
    first, second = results(kernels, PUBLISHED, inputs), results(kernels, PUBLISHED, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_time_segments_equal_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from archsearch.kernels.m2rnn.gpu import launch

    inputs = draw(PUBLISHED, "cuda")
    whole = results(kernels, PUBLISHED, inputs)
    monkeypatch.setattr(launch, "_budget", lambda *_: 1 << 18)
    parts = results(kernels, PUBLISHED, inputs)
    assert max(relative_error(a, b.double()) for a, b in zip(parts, whole, strict=True)) < 1e-6


def test_steps_of_decoding_continue_the_sequence() -> None:
    q, k, v, w, f, state = draw(PUBLISHED, "cuda").tensors
    whole, _ = kernels(q, k, v, w, f, state)
    outputs = []
    for t in range(8):
        now = slice(t, t + 1)
        y, state = kernels(q[:, now], k[:, now], v[:, now], w, f[:, now], state)
        outputs.append(y)
    assert relative_error(torch.cat(outputs, dim=1), whole[:, :8].double()) < LIMITS[torch.bfloat16]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_torch_compile_breaks_no_graph_and_changes_no_bit() -> None:
    inputs = draw(PUBLISHED, "cuda")
    leaves = [x.detach().clone().requires_grad_() for x in inputs.tensors]

    def loss(q: Tensor, k: Tensor, v: Tensor, w: Tensor, f: Tensor, state: Tensor) -> Tensor:
        y, final = kernels(q * 1.0, k, v, w, f, state, 1.0)
        return (y.float() * inputs.dy.float()).sum() + (final * inputs.dstate).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    actual = torch.autograd.grad(compiled(*leaves), leaves)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_the_op_is_registered_as_pytorch_wants_it() -> None:
    from archsearch.kernels.m2rnn.gpu.custom_op import _forward

    leaves = [x.detach().clone().requires_grad_() for x in draw(PUBLISHED, "cuda").tensors]
    torch.library.opcheck(
        _forward.overload,
        (*leaves, None, 1.0, True),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_offsets_beyond_32_bits() -> None:
    """One test for both families of kernels: each takes 70 GiB, and tests may run side by side."""
    torch.use_deterministic_algorithms(False)
    if torch.cuda.mem_get_info()[0] < 75 << 30:
        pytest.skip("needs 75 GiB of free GPU memory")
    for batch, steps, key, value in ((2050, 64, 64, 16), (1030, 32, 16, 64)):
        last_of_many_sequences_is_right(batch, steps, key, value)
        torch.cuda.empty_cache()


def last_of_many_sequences_is_right(batch: int, steps: int, key: int, value: int) -> None:
    """Compare the last sequence only: its offsets lie beyond 2^31 elements."""
    g = torch.Generator(device="cuda").manual_seed(0)
    heads, bf16 = 1024, torch.bfloat16
    q = (torch.randn(batch, steps, 1, key, generator=g, device="cuda", dtype=bf16) * 0.1).requires_grad_()
    v = torch.randn(batch, steps, heads, value, generator=g, device="cuda", dtype=bf16).requires_grad_()
    f = torch.full((batch, steps, heads), 0.5, device="cuda")
    w = torch.eye(value, device="cuda", dtype=bf16).expand(heads, -1, -1)
    y, _ = kernels(q, q, v, w, f)
    dq, dv = torch.autograd.grad(y, (q, v), torch.ones_like(y))
    q_last, v_last = (x[-1:].detach().double().requires_grad_() for x in (q, v))
    exact, _ = loop(q_last, q_last, v_last, w.double(), f[-1:].double())
    expected = (exact, *torch.autograd.grad(exact, (q_last, v_last), torch.ones_like(exact)))
    for a, b in zip((y[-1:], dq[-1:], dv[-1:]), expected, strict=True):
        assert relative_error(a, b) < LIMITS[bf16]
