from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.gated_delta_rule.product import gated_delta_product
from archsearch.mixers.gated_deltanet import GatedDeltaNet, GatedDeltaNetOptions
from archsearch.mixers.gated_deltaproduct import GatedDeltaProduct, GatedDeltaProductOptions

EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64: only the order of sums differs
SHAPE: dict[str, Any] = {"num_heads": 2, "num_value_heads": 4, "key_head_dim": 5, "value_head_dim": 3}


def product_loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiply out `S_t = A_t S_{t-1} + B_t` as arXiv:2502.10297 states it, one head of one sequence.

    `A_t = a_t prod_i (I - b_i k_i k_i^T)`, the last step leftmost; `B_t` holds each write, seen by the later steps.
    """
    outputs = []
    for t in range(len(q)):
        transition = log_decay[t].exp() * torch.eye(len(state), dtype=state.dtype)
        written = torch.zeros_like(state)
        for i in range(k.shape[1]):
            reflect = torch.eye(len(state), dtype=state.dtype) - beta[t, i] * torch.outer(k[t, i], k[t, i])
            transition = reflect @ transition
            written = reflect @ written + beta[t, i] * torch.outer(k[t, i], v[t, i])
        state = transition @ state + written
        outputs.append(state.T @ q[t])
    return torch.stack(outputs), state


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 4, 50])
def test_the_steps_of_a_token_are_the_papers_product(n: int, length: int) -> None:
    q, v, log_decay = draw(2, length, 3, 5), draw(2, length, n, 3, 7, seed=1), -draw(2, length, 3, seed=2).abs()
    k = functional.normalize(draw(2, length, n, 3, 5, seed=3), dim=-1)
    beta, state = 2 * draw(2, length, n, 3, seed=4).sigmoid(), draw(2, 3, 5, 7, seed=5)
    leaves = [x.requires_grad_() for x in (q, k, v, log_decay, beta, state)]
    y, final = gated_delta_product(q, k, v, log_decay, beta, initial_state=state)
    rows = [
        [product_loop(*(x[b, ..., h, :] for x in (q, k, v)), log_decay[b, :, h], beta[b, :, :, h], state[b, h])
         for h in range(3)] for b in range(2)
    ]  # fmt: skip
    expected = torch.stack([torch.stack([heads[h][0] for h in range(3)], dim=1) for heads in rows])
    torch.testing.assert_close(y, expected, **EXACT)
    torch.testing.assert_close(final, torch.stack([torch.stack([h[1] for h in heads]) for heads in rows]), **EXACT)
    weights = draw(*y.shape, seed=6)
    torch.testing.assert_close(
        torch.autograd.grad((y * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        **EXACT,
    )


def pair(**values: Any) -> tuple[GatedDeltaNet, GatedDeltaProduct]:
    """Return a Gated DeltaNet, and a DeltaProduct of one step with its weights."""
    torch.manual_seed(0)
    net = GatedDeltaNet(GatedDeltaNetOptions(**SHAPE, **values), 8).double()
    product = GatedDeltaProduct(
        GatedDeltaProductOptions(**SHAPE, num_householder=1, **{"allow_negative_eigenvalues": False, **values}), 8
    ).double()
    net.reset_parameters(0.5, 0.5)
    product.load_state_dict(net.state_dict())
    return net, product


@pytest.mark.parametrize("values", [{}, {"gate": False, "allow_negative_eigenvalues": True}])
@pytest.mark.parametrize("length", [3, 70])
def test_one_step_is_gated_deltanet_bit_for_bit(values: dict[str, Any], length: int) -> None:
    net, product = pair(**values)
    x = draw(2, length, 8)
    results = []
    for mixer in (net, product):
        y, state = mixer(x)
        results.append([y, *state.values(), *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    for figure in ("num_parameters", "state_size"):
        assert getattr(net.options, figure)(8) == getattr(product.options, figure)(8)
    assert net.options.flops_per_token(8, 64) == product.options.flops_per_token(8, 64)


@torch.no_grad()
def test_the_block_takes_each_steps_own_key_value_and_strength() -> None:
    torch.manual_seed(0)
    mixer = GatedDeltaProduct(GatedDeltaProductOptions(**SHAPE), 8).double()
    mixer.reset_parameters(0.5, 0.5)
    x = draw(1, 6, 8)
    qkv, a, b, g = (x[0] @ mixer.in_proj.weight.T).split([10 + 2 * 10 + 2 * 12, 4, 8, 12], dim=-1)
    padded = torch.cat([torch.zeros(3, 54, dtype=torch.float64), qkv])
    qkv = functional.silu(torch.stack([(padded[t : t + 4].T * mixer.conv.weight).sum(-1) for t in range(6)]))
    log_decay = -mixer.decay.alpha_log.exp() * functional.softplus(a + mixer.decay.beta)
    rows = []
    for n in range(4):
        group, key = n // 2, slice(5 * (n // 2), 5 * (n // 2) + 5)  # two value heads read one key head
        q = functional.normalize(qkv[:, :10][:, key], dim=-1) * 5**-0.5
        k = functional.normalize(qkv[:, 10:30].reshape(6, 2, 2, 5)[:, :, group], dim=-1)
        v = qkv[:, 30:].reshape(6, 2, 4, 3)[:, :, n]
        strength = 2 * b.reshape(6, 2, 4)[:, :, n].sigmoid()
        y, _ = product_loop(q, k, v, log_decay[:, n], strength, torch.zeros(5, 3, dtype=torch.float64))
        gated = y * functional.silu(g[:, 3 * n : 3 * n + 3])
        rows.append(gated * (gated.square().mean(-1, keepdim=True) + 1e-5).rsqrt())
    torch.testing.assert_close(mixer(x)[0][0], torch.cat(rows, dim=-1) @ mixer.out_proj.weight.T)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_number_of_steps_has_the_figures_of_its_formulas(n: int) -> None:
    options = GatedDeltaProductOptions(**SHAPE, num_householder=n)
    mixer = GatedDeltaProduct(options, 8)
    _, state = mixer(torch.randn(1, 5, 8))
    assert state is not None
    assert options.num_parameters(8) == sum(parameter.numel() for parameter in mixer.parameters())
    assert options.state_size(8) == state["recurrent"].numel() == 4 * 5 * 3
    assert options.cache_size(8, 5) == state["conv"].numel()


def test_a_step_more_costs_its_projections_filters_recall_and_write() -> None:
    one, two = (GatedDeltaProductOptions(**SHAPE, num_householder=n).flops_per_token(8, 64) for n in (1, 2))
    assert two - one == 2 * (8 * (10 + 12 + 4) + (10 + 12) * 4 + 2 * 60)


def test_two_reflections_rotate_where_one_cannot() -> None:
    """A rotation by 120 degrees, the 3-cycle of S3, in one token: its determinant is 1, that of a reflection is -1."""
    angle = torch.tensor(torch.pi / 3, dtype=torch.float64)
    keys = torch.stack([torch.tensor([1.0, 0.0], dtype=torch.float64), torch.stack([angle.cos(), angle.sin()])])
    k = keys.reshape(1, 1, 2, 1, 2)
    _, final = gated_delta_product(
        torch.zeros(1, 1, 1, 2, dtype=torch.float64),
        k,
        torch.zeros(1, 1, 2, 1, 2, dtype=torch.float64),
        torch.zeros(1, 1, 1, dtype=torch.float64),
        torch.full((1, 1, 2, 1), 2.0, dtype=torch.float64),
        initial_state=torch.eye(2, dtype=torch.float64)[None, None],
    )
    turned = final[0, 0]
    torch.testing.assert_close(turned @ turned @ turned, torch.eye(2, dtype=torch.float64))
    assert torch.linalg.det(turned).item() == pytest.approx(1)
    assert torch.trace(turned).item() == pytest.approx(-1)
