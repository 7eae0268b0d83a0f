from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from archsearch.mixers.m2rnn import M2RNN, M2RNNOptions

FORMS: dict[str, dict[str, Any]] = {
    "multi-value": {},
    "multi-head": {"num_query_heads": 4, "num_key_heads": 4},
    "multi-query": {"num_query_heads": 4, "num_value_heads": 1},
    "multi-key": {"num_key_heads": 4, "num_value_heads": 1},
    "shared gates and weights": {"num_forget_heads": 2, "num_weight_heads": 1, "num_gate_heads": 2},
    "weights only": {"num_value_heads": 1, "num_forget_heads": 1, "num_gate_heads": 1},
    "output gates only": {"num_value_heads": 2, "num_forget_heads": 1, "num_weight_heads": 2},
    "no convolution": {"conv_width": None},
    "nothing before the recurrence": {"conv_width": None, "activation": "none"},
    "no residual": {"residual": False},
}


def build(**values: Any) -> M2RNN:
    torch.manual_seed(0)
    options = M2RNNOptions(num_heads=4, key_head_dim=5, value_head_dim=3, **values)
    options.check(8)
    return M2RNN(options, 8).double()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_figures_of_its_formulas(form: str) -> None:
    mixer = build(**FORMS[form])
    y, state = mixer(torch.randn(2, 7, 8, dtype=torch.float64))
    assert state is not None
    assert y.shape == (2, 7, 8)
    assert mixer.options.num_parameters(8) == sum(parameter.numel() for parameter in mixer.parameters())
    assert mixer.options.state_size(8) == state["recurrent"][0].numel()
    assert mixer.options.cache_size(8, 7) == (state["conv"][0].numel() if "conv" in state else 0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_on_from_its_state(form: str) -> None:
    mixer, x = build(**FORMS[form]), torch.randn(2, 7, 8, dtype=torch.float64)
    first, state = mixer(x[:, :3])
    second, _ = mixer(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), mixer(x)[0])


def test_the_block_is_the_published_one() -> None:
    mixer, x = build(), torch.randn(1, 6, 8, dtype=torch.float64)
    mixer.reset_parameters(0.5, 0.5)
    with torch.no_grad():
        assert mixer.residual_weight is not None
        mixer.residual_weight.normal_()
        mixer.weight.normal_()
        q, k, v, a, g = (x[0] @ mixer.in_proj.weight.T).split([5, 5, 12, 4, 12], dim=-1)
        qkv = torch.cat([q, k, v], dim=-1)
        padded = torch.cat([torch.zeros(3, 22, dtype=torch.float64), qkv])
        assert mixer.conv is not None
        filtered = torch.stack([(padded[t : t + 4].T * mixer.conv.weight).sum(-1) for t in range(6)])
        q, k, v = functional.silu(filtered).split([5, 5, 12], dim=-1)
        forget = torch.exp(-mixer.decay.alpha_log.exp() * functional.softplus(a + mixer.decay.beta))
        rows = torch.zeros(6, 4, 3, dtype=torch.float64)
        for n in range(4):
            h = torch.zeros(5, 3, dtype=torch.float64)
            for t in range(6):
                value = v[t, 3 * n : 3 * n + 3]
                h = forget[t, n] * h + (1 - forget[t, n]) * torch.tanh(h @ mixer.weight[n] + torch.outer(k[t], value))
                rows[t, n] = h.T @ q[t] + mixer.residual_weight[n] * value
        gated = rows.flatten(1) * functional.silu(g)
        normed = gated * (gated.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        torch.testing.assert_close(mixer(x)[0][0], normed @ mixer.out_proj.weight.T)


def test_weights_start_as_the_identity_or_orthogonal_each_head_its_own() -> None:
    identity, orthogonal = build().weight, build(weight_init="orthogonal").weight
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    assert torch.equal(identity, eye)
    torch.testing.assert_close(orthogonal @ orthogonal.mT, eye, rtol=0, atol=1e-6)  # drawn in float32
    assert not torch.allclose(orthogonal[0], orthogonal[1])


def test_the_gate_starts_in_the_range_asked_for() -> None:
    torch.manual_seed(0)
    fixed = build(alpha_init_min=1.0, alpha_init_max=1.0, dt_init_min=1.7, dt_init_max=1.7)
    _, log_forget = fixed.decay(torch.zeros(1, 1, 4, dtype=torch.float64))
    torch.testing.assert_close(log_forget, torch.full((1, 1, 4), -1.7, dtype=torch.float64), rtol=1e-5, atol=0)

    decay = M2RNN(M2RNNOptions(num_heads=2000, key_head_dim=1, value_head_dim=1), 8).decay
    alpha, dt = decay.alpha_log.exp(), functional.softplus(decay.beta)
    assert 0 < alpha.min() < 0.1
    assert 15.9 < alpha.max() <= 16
    assert alpha.mean().item() == pytest.approx(8, rel=0.05)
    assert 0.99e-3 < dt.min() < 1.1e-3
    assert 0.09 < dt.max() < 0.1001
    assert dt.log().mean().item() == pytest.approx(torch.tensor([1e-3, 1e-1]).log().mean().item(), rel=0.05)


def test_dt_starts_no_lower_than_its_floor() -> None:
    mixer = build(dt_init_min=1e-6, dt_init_max=1e-5, dt_init_floor=1e-4)
    torch.testing.assert_close(functional.softplus(mixer.decay.beta), torch.full((4,), 1e-4, dtype=torch.float64))


def test_clipping_reaches_the_gradient_carried_through_time() -> None:
    x = torch.randn(1, 30, 8, dtype=torch.float64)
    gradients = []
    for clip in (None, 1e-3):
        mixer = build(gradient_clip=clip, alpha_init_max=0.1)
        mixer.reset_parameters(0.5, 0.5)
        mixer(x)[0].square().sum().backward()
        gradients.append(mixer.weight.grad)
    assert gradients[0] is not None
    assert not torch.allclose(*gradients, rtol=0.1)
