"""What the ops with a vector state per head have in common, each against its loop as written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archsearch.kernels.dispatch import Backends
from archsearch.kernels.gru.op import gru
from archsearch.kernels.gru.reference import gru_by_hand, gru_loop
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.rnn.op import rnn
from archsearch.kernels.rnn.reference import rnn_by_hand, rnn_loop
from archsearch.kernels.vector_state import run_vector_state, why_refused

ROOT = Path(__file__).parents[2]
EXACT = {"rtol": 1e-10, "atol": 1e-11}  # float64: only the order of sums differs

Run = Callable[..., Tensor]
Op = Callable[..., tuple[Tensor, Tensor]]

OPS: dict[str, tuple[Op, Run, Run, int]] = {  # the number of inputs, and as many weights
    "rnn": (rnn, rnn_loop, rnn_by_hand, 1),
    "gru": (gru, gru_loop, gru_by_hand, 3),
}
every_op = pytest.mark.parametrize("name", OPS)


def inputs(name: str, length: int, counts: tuple[int, ...] | None = None, batch: int = 2) -> list[Tensor]:
    """Draw the inputs, the weights and a state; D 4, N 3 or the largest of `counts`."""
    generator = torch.Generator().manual_seed(0)
    parts = OPS[name][3]
    counts = counts or (3,) * (2 * parts)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    xs = [draw(batch, length, count, 4) for count in counts[:parts]]
    return [*xs, *(draw(count, 4, 4) for count in counts[parts:]), draw(batch, max(counts), 4)]


def gradients(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    """Return the gradients of `leaves` where each output has one of its own, large enough to be clipped."""
    generator = torch.Generator().manual_seed(1)
    from_above = [3 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
    return list(torch.autograd.grad(outputs, leaves, from_above))


def with_gradients(run: Callable[..., tuple[Tensor, ...]], values: list[Tensor]) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in values]
    outputs = run(*leaves)
    return [*outputs, *gradients(outputs, leaves)]


@every_op
@pytest.mark.parametrize("length", [1, 2, 63, 64, 100])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_gradient_by_hand_is_autograds(name: str, length: int, clip: float | None) -> None:
    _, loop, by_hand, _ = OPS[name]
    values = inputs(name, length)
    torch.testing.assert_close(
        with_gradients(lambda *x: (by_hand(*x, clip),), values),
        with_gradients(lambda *x: (loop(*x, clip),), values),
        **EXACT,
    )


@every_op
def test_clipping_changes_every_gradient_and_no_output(name: str) -> None:
    op, values = OPS[name][0], inputs(name, 20)
    free, clipped = (
        with_gradients(lambda *x, clip=clip: op(*x[:-1], initial_state=x[-1], gradient_clip=clip), values)  # type: ignore[misc]
        for clip in (None, 0.5)
    )
    torch.testing.assert_close(free[:2], clipped[:2], rtol=0, atol=0)
    assert not any(torch.allclose(a, b, rtol=1e-2) for a, b in zip(free[2:], clipped[2:], strict=True))


@every_op
def test_clipping_spares_what_comes_from_above_and_the_initial_state(name: str) -> None:
    op, loop, _, _ = OPS[name]
    leaves = [value.requires_grad_() for value in inputs(name, 1)]
    states = loop(*leaves)
    y, _ = op(*leaves[:-1], initial_state=leaves[-1], gradient_clip=1e-3)
    _, final = op(*leaves[:-1], initial_state=leaves[-1], gradient_clip=1e-3)
    torch.testing.assert_close(
        torch.autograd.grad(y, leaves, torch.full_like(y, 7.0)),
        torch.autograd.grad(states, leaves, torch.full_like(y, 7.0), retain_graph=True),
        **EXACT,
    )
    torch.testing.assert_close(  # the final state goes on to a next step, so that its gradient is a carried one
        torch.autograd.grad(final, leaves, torch.full_like(final, 7.0)),
        torch.autograd.grad(states, leaves, torch.full_like(y, 1e-3)),
        **EXACT,
    )


@every_op
def test_heads_that_share_get_the_sum_of_their_gradients(name: str) -> None:
    op, loop, _, parts = OPS[name]
    many = {
        1: [(4, 1), (1, 4), (2, 4), (4, 4)],
        3: [(4, 1, 1, 1, 1, 1), (1, 4, 2, 1, 1, 2), (1, 1, 4, 2, 1, 1), (2, 1, 1, 1, 4, 1), (1, 2, 1, 2, 2, 4)],
    }[parts]

    def repeated(*x: Tensor) -> tuple[Tensor, Tensor]:
        xs = [expand_heads(part, 4) for part in x[:parts]]
        states = loop(*xs, *(expand_heads(weight, 4, dim=0) for weight in x[parts:-1]), x[-1])
        return states, states[:, -1]

    for counts in many:
        values = inputs(name, 5, counts)
        shared = with_gradients(lambda *x: op(*x[:-1], initial_state=x[-1]), values)
        torch.testing.assert_close(shared, with_gradients(repeated, values), **EXACT)


@every_op
@pytest.mark.parametrize("clip", [None, 0.5])
def test_packed_documents_are_separate_ones_with_every_gradient(name: str, clip: float | None) -> None:
    op, _, _, parts = OPS[name]
    bounds = [0, 1, 8, 20]
    values = inputs(name, 20, batch=1)
    values[-1] = torch.randn(3, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def packed(*x: Tensor) -> tuple[Tensor, Tensor]:
        return op(*x[:-1], initial_state=x[-1], gradient_clip=clip, cu_seqlens=torch.tensor(bounds))

    def alone(*x: Tensor) -> tuple[Tensor, Tensor]:
        results = [
            op(*(part[:, i:j] for part in x[:parts]), *x[parts:-1], initial_state=state[None], gradient_clip=clip)
            for (i, j), state in zip(pairwise(bounds), x[-1], strict=True)
        ]
        return torch.cat([y for y, _ in results], dim=1), torch.cat([final for _, final in results])

    torch.testing.assert_close(with_gradients(packed, values), with_gradients(alone, values), **EXACT)


@every_op
def test_gradcheck(name: str) -> None:
    op = OPS[name][0]
    values = [value.requires_grad_() for value in inputs(name, 3, batch=1)]
    assert torch.autograd.gradcheck(lambda *x: op(*x[:-1], initial_state=x[-1]), values, fast_mode=True)


@every_op
def test_half_precision_keeps_its_state_in_float32(name: str) -> None:
    op, loop, _, _ = OPS[name]
    values = [value.bfloat16() for value in inputs(name, 9)]
    y, final = op(*values[:-1], initial_state=values[-1])
    exact = loop(*(value.float() for value in values))
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(final, exact[:, -1])
    torch.testing.assert_close(y, exact.bfloat16())


@every_op
def test_a_backward_pass_under_autocast_is_not_rounded(name: str) -> None:
    values = [value.float().requires_grad_() for value in inputs(name, 20)]
    y, _ = OPS[name][0](*values[:-1], initial_state=values[-1])
    expected = torch.autograd.grad(y.sum(), values, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(y.sum(), values)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@every_op
def test_any_form_of_the_recurrence_is_not_rounded_under_autocast(name: str) -> None:
    op, loop, _, parts = OPS[name]
    values = [value.float() for value in inputs(name, 20)]
    xs, weights = (dict(enumerate(part)) for part in (values[:parts], values[parts:-1]))

    def run() -> tuple[Tensor, Tensor]:
        return run_vector_state(
            loop,
            Backends("some op"),
            {f"x{i}": x for i, x in xs.items()},
            {f"W{i}": weight for i, weight in weights.items()},
            initial_state=None,
            gradient_clip=None,
            cu_seqlens=None,
            backend="auto",
        )

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(), expected, rtol=0, atol=0)
    torch.testing.assert_close(expected, op(*values[:-1]))


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight, state = inputs("rnn", 4)
    with pytest.raises(ValueError, match=r"weights be D x D; got x \(2, 4, 3, 4\), W \(3, 4, 3\)"):
        rnn(x, weight[..., :3])
    with pytest.raises(ValueError, match=r"every head count must divide the largest; got x, W = \[2, 3\]"):
        rnn(x[:, :, :2], weight)
    with pytest.raises(ValueError, match=r"initial_state must have shape \(2, 3, 4\); got \(1, 3, 4\)"):
        rnn(x, weight, initial_state=state[:1])
    with pytest.raises(ValueError, match=r"gradient_clip must be positive; got 0"):
        rnn(x, weight, gradient_clip=0)
    *gates, _ = inputs("gru", 4)
    with pytest.raises(ValueError, match=r"must share batch, length and head dim D.*x_r \(2, 3, 3, 4\)"):
        gru(*gates[:2], gates[2][:, :3], *gates[3:])


def test_the_kernels_say_what_they_do_not_take() -> None:
    x, weight = torch.randn(1, 2, 3, 4), torch.randn(3, 4, 4)
    assert why_refused([x, weight]) is None
    assert why_refused([x.bfloat16(), weight]) is None
    assert why_refused([x, weight.double()]) == (
        "its kernels take bfloat16, float16 or float32; got torch.float32, torch.float64"
    )
    wide = torch.randn(1, 2, 3, 65), torch.randn(3, 65, 65)
    assert why_refused(list(wide)) == "its kernels take head dims up to 64; got 65"
    assert why_refused([x[:0], weight]) == "its kernels take no empty tensors; got (0, 2, 3, 4), (3, 4, 4)"


@every_op
def test_kernels_by_name_need_a_gpu(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: backend 'triton' cannot be used: "):
        OPS[name][0](*(value.float() for value in inputs(name, 2)[:-1]), backend="triton")


@pytest.mark.slow
def test_the_interpreted_kernels_agree_with_the_float64_reference() -> None:
    pytest.importorskip("triton", reason="triton has no build for this platform")
    from tests.kernels.vector_cases import INTERPRETER, LIMITS

    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.vector_cases"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert set(errors) == set(map(str, INTERPRETER))
    for case in INTERPRETER:
        of = errors[str(case)]
        assert len(of) == 2 + 2 * OPS[case.op][3] + case.state, case  # both outputs and every gradient
        assert max(of.values()) < LIMITS[case.dtype], (case, of)
