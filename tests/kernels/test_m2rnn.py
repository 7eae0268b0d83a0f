from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archsearch.kernels.heads import expand_heads
from archsearch.kernels.m2rnn.op import BACKENDS, m2rnn
from archsearch.kernels.m2rnn.reference import m2rnn_by_hand, m2rnn_loop

EXACT = {"rtol": 1e-10, "atol": 1e-11}  # float64: only the order of sums differs
NAMES = ("q", "k", "v", "weight", "forget", "state")

Run = Callable[..., tuple[Tensor, Tensor]]


def inputs(length: int, counts: tuple[int, ...] = (3, 3, 3, 3, 3), scale: float = 1.0) -> list[Tensor]:
    """Draw q, k, v, weight, forget and state for 2 sequences, K 5, V 4, N 3 or the largest of `counts`."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    nq, nk, nv, nw, nf = counts
    weight, forget = draw(nw, 4, 4), torch.rand(2, length, nf, generator=generator, dtype=torch.float64)
    return [
        draw(2, length, nq, 5),
        draw(2, length, nk, 5),
        draw(2, length, nv, 4),
        weight,
        forget,
        draw(2, max(counts), 5, 4),
    ]


def results(run: Run, values: list[Tensor], clip: float | None) -> dict[str, Tensor]:
    """Return y, the final state and the gradient of each input, both outputs having a gradient of their own."""
    leaves = [value.clone().requires_grad_() for value in values]
    y, final = run(*leaves, clip)
    generator = torch.Generator().manual_seed(1)
    from_above = [3 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (y, final)]
    gradients = torch.autograd.grad((y, final), leaves, from_above)
    return {"y": y.detach(), "final": final.detach(), **dict(zip(NAMES, gradients, strict=True))}


def test_the_loop_is_the_equation() -> None:
    q, k, v, weight, forget, state = inputs(3)
    y, final = m2rnn_loop(q, k, v, weight, forget, state)
    h = state[1, 2]
    for t in range(3):
        z = torch.tanh(h @ weight[2] + torch.outer(k[1, t, 2], v[1, t, 2]))
        h = forget[1, t, 2] * h + (1 - forget[1, t, 2]) * z
        torch.testing.assert_close(y[1, t, 2], h.T @ q[1, t, 2], **EXACT)
    torch.testing.assert_close(final[1, 2], h, **EXACT)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 100])
def test_the_gradient_by_hand_is_autograds(length: int) -> None:
    values = inputs(length)
    torch.testing.assert_close(results(m2rnn_by_hand, values, None), results(m2rnn_loop, values, None), **EXACT)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 100])
def test_the_clipped_gradient_by_hand_is_the_loops(length: int) -> None:
    values, clip = inputs(length), 0.5
    by_hand, loop = results(m2rnn_by_hand, values, clip), results(m2rnn_loop, values, clip)
    torch.testing.assert_close(by_hand, loop, **EXACT)
    unclipped = results(m2rnn_by_hand, values, None)
    torch.testing.assert_close(by_hand["y"], unclipped["y"], **EXACT)
    for name in ("k", "v", "weight", "forget", "state"):
        assert not torch.allclose(by_hand[name], unclipped[name], rtol=1e-2), name


def test_clipping_spares_what_comes_from_above_and_the_initial_state() -> None:
    q, k, v, weight, forget, state = inputs(1, scale=0.1)
    q, state = 100 * q, state.requires_grad_()
    y, final = m2rnn_by_hand(q, k, v, weight, torch.ones_like(forget), state, 0.25)
    (from_y,) = torch.autograd.grad(y, state, torch.ones_like(y), retain_graph=True)
    torch.testing.assert_close(from_y, q[:, 0, :, :, None].expand_as(state), **EXACT)  # f = 1: dH_0 = q u^T
    assert from_y.abs().max() > 0.25
    (from_final,) = torch.autograd.grad(final, state, torch.full_like(final, 7.0))
    torch.testing.assert_close(from_final, torch.full_like(state, 0.25), **EXACT)


@pytest.mark.parametrize("counts", [*itertools.product((1, 4), repeat=5), (2, 1, 4, 2, 4)])
def test_heads_that_share_get_the_sum_of_their_gradients(counts: tuple[int, ...]) -> None:
    def shared(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float) -> object:
        return m2rnn(q, k, v, weight, forget, initial_state=state, gradient_clip=clip)

    def repeated(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, forget: Tensor, state: Tensor, clip: float) -> object:
        heads = state.shape[1]
        q, k, v, forget = (expand_heads(x, heads) for x in (q, k, v, forget))
        return m2rnn_loop(q, k, v, expand_heads(weight, heads, dim=0), forget, state, clip)

    values = inputs(5, counts)
    torch.testing.assert_close(results(shared, values, 0.5), results(repeated, values, 0.5), **EXACT)  # type: ignore[arg-type]


def test_gradcheck() -> None:
    values = [value.requires_grad_() for value in inputs(4, (1, 1, 2, 2, 2))]
    assert torch.autograd.gradcheck(
        lambda q, k, v, w, f, h: m2rnn(q, k, v, w, f, initial_state=h), values, nondet_tol=1e-12
    )


def test_packed_documents_end_in_their_own_states() -> None:
    q, k, v, weight, forget, _ = (x[:1] if x.ndim == 4 or i == 4 else x for i, x in enumerate(inputs(9)))
    _, final = m2rnn(q, k, v, weight, forget, cu_seqlens=torch.tensor([0, 2, 9]))
    for i, part in enumerate((slice(0, 2), slice(2, 9))):
        _, alone = m2rnn(q[:, part], k[:, part], v[:, part], weight, forget[:, part])
        torch.testing.assert_close(final[i], alone[0], **EXACT)


def test_a_backward_pass_under_autocast_is_not_rounded() -> None:
    values = [value.float().requires_grad_() for value in inputs(20)]
    y, _ = m2rnn(*values[:5], initial_state=values[5])
    expected = torch.autograd.grad(y.sum(), values, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(y.sum(), values)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, weight, forget, state = inputs(4)
    with pytest.raises(ValueError, match=r"v and W the value head dim; got .* W \(3, 4, 3\)"):
        m2rnn(q, k, v, weight[..., :3], forget)
    with pytest.raises(ValueError, match=r"head count must divide the largest; got q, k, v, f, W = \[2, 3, 3, 3, 3\]"):
        m2rnn(q[:, :, :2], k, v, weight, forget)
    with pytest.raises(ValueError, match=r"initial_state must have shape \(2, 3, 5, 4\); got \(1, 3, 5, 4\)"):
        m2rnn(q, k, v, weight, forget, initial_state=state[:1])


def test_what_the_kernels_cannot_take_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS.fast, "triton", lambda: None)  # type: ignore[index]  # as on a machine that has them
    values = inputs(4)
    with pytest.raises(ValueError, match=r"'triton' cannot be used: .* bfloat16, float16 or float32; got float64"):
        m2rnn(*values[:5], backend="triton")
    q, k, v, weight, forget, _ = (x.float() for x in values)
    with pytest.raises(ValueError, match=r"'triton' cannot be used: its inputs are not on a GPU"):
        m2rnn(q, k, v, weight, forget, backend="triton")
    wide = q.new_zeros(2, 4, 3, 129)
    with pytest.raises(ValueError, match=r"'triton' cannot be used: .* up to 128; got K 129, V 4"):
        m2rnn(wide, wide, v, weight, forget, backend="triton")


def test_lengths_and_clips_that_do_not_fit_are_refused() -> None:
    q, k, v, weight, forget, _ = inputs(4)
    with pytest.raises(ValueError, match=r"q, k, v and f must share batch and length; got .* f \(2, 3\)"):
        m2rnn(q, k, v, weight, forget[:, :3])
    with pytest.raises(ValueError, match=r"gradient_clip must be positive; got 0"):
        m2rnn(q, k, v, weight, forget, gradient_clip=0)


def test_the_op_imports_no_triton() -> None:
    code = "import sys, archsearch.kernels.m2rnn.op; print('triton' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
