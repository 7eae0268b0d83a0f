from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.gated_delta_rule.chunk import gated_delta_rule_chunked
from archsearch.kernels.gated_delta_rule.op import gated_delta_rule
from archsearch.kernels.gated_delta_rule.reference import gated_delta_rule_loop

EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64: only the order of sums differs


def inputs(length: int, decay: float = 1.0) -> list[Tensor]:
    """Draw q, k, v, log_decay (about -decay), beta and state for 2 sequences, 3 heads, K 5, V 7."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = draw(2, length, 3, 5), functional.normalize(draw(2, length, 3, 5), dim=-1), draw(2, length, 3, 7)
    return [q, k, v, -decay * draw(2, length, 3).abs(), 2 * draw(2, length, 3).sigmoid(), draw(2, 3, 5, 7)]


def with_gradients(run: object, values: list[Tensor]) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in values]
    y, final = run(*leaves[:5], 0.3, leaves[5])  # type: ignore[operator]
    generator = torch.Generator().manual_seed(1)
    from_above = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (y, final)]
    return [y, final, *torch.autograd.grad((y, final), leaves, from_above)]


def test_the_loop_is_the_equation() -> None:
    q, k, v, log_decay, beta, state = inputs(3)
    y, final = gated_delta_rule_loop(q, k, v, log_decay, beta, 0.3, state)
    s, identity = state[1, 2], torch.eye(5, dtype=torch.float64)
    for t in range(3):
        a, b, key = log_decay[1, t, 2].exp(), beta[1, t, 2], k[1, t, 2]
        s = a * (identity - b * torch.outer(key, key)) @ s + b * torch.outer(key, v[1, t, 2])
        torch.testing.assert_close(y[1, t, 2], 0.3 * s.T @ q[1, t, 2], **EXACT)
    torch.testing.assert_close(final[1, 2], s, **EXACT)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100, 200])
@pytest.mark.parametrize("decay", [0.01, 1.0])
def test_chunks_are_the_loop_with_every_gradient(length: int, decay: float) -> None:
    values = inputs(length, decay)
    torch.testing.assert_close(
        with_gradients(gated_delta_rule_chunked, values), with_gradients(gated_delta_rule_loop, values), **EXACT
    )


def test_a_decay_that_forgets_everything_leaves_finite_gradients() -> None:
    values = [value.float() for value in inputs(100, decay=200.0)]
    actual = with_gradients(gated_delta_rule_chunked, values)
    assert all(x.isfinite().all() for x in actual)
    torch.testing.assert_close(actual, with_gradients(gated_delta_rule_loop, values), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [4, 20])
def test_value_heads_read_the_key_head_of_their_group(length: int) -> None:
    q, k, *_ = inputs(length)
    _, _, v, log_decay, beta, state = (torch.cat([x, 2 * x], dim=1 if x.shape[1] == 3 else 2) for x in inputs(length))
    y, final = gated_delta_rule(q, k, v, log_decay, beta, initial_state=state)
    q, k = (x.repeat_interleave(2, dim=2) for x in (q, k))
    expected = gated_delta_rule_loop(q, k, v, log_decay, beta, 1.0, state)
    torch.testing.assert_close((y, final), expected, **EXACT)


@pytest.mark.parametrize("bounds", [[0, 3, 5], [0, 30, 100]])
def test_packed_documents_end_in_their_own_states(bounds: list[int]) -> None:
    q, k, v, log_decay, beta, _ = (x[:1] for x in inputs(bounds[-1]))
    _, final = gated_delta_rule(q, k, v, log_decay, beta, cu_seqlens=torch.tensor(bounds))
    for i, (start, stop) in enumerate(pairwise(bounds)):
        _, alone = gated_delta_rule(*(x[:, start:stop] for x in (q, k, v, log_decay, beta)))
        torch.testing.assert_close(final[i], alone[0], **EXACT)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, log_decay, beta, state = inputs(4)
    with pytest.raises(ValueError, match=r"head count must divide v's; got q \(2, 4, 2, 5\), k \(2, 4, 2, 5\)"):
        gated_delta_rule(q[:, :, :2], k[:, :, :2], v, log_decay, beta)
    with pytest.raises(
        ValueError, match=r"log_decay and beta must have shape \(2, 4, 3\); got \(2, 4, 3\) and \(2, 4, 1\)"
    ):
        gated_delta_rule(q, k, v, log_decay, beta[..., :1])
    with pytest.raises(ValueError, match=r"initial_state must have shape \(2, 3, 5, 7\); got \(1, 3, 5, 7\)"):
        gated_delta_rule(q, k, v, log_decay, beta, initial_state=state[:1])
