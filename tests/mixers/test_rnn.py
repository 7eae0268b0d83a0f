"""The RNN and the GRU: two recurrences in one block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch import registry
from archsearch.kernels.rnn.op import rnn
from archsearch.mixers.common import Mixer
from archsearch.mixers.gru import GRU, GRUOptions
from archsearch.mixers.rnn import RNN, RNNOptions

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "every head its own": ("rnn", {}),
    "one input": ("rnn", {"num_input_heads": 1}),
    "two weights": ("rnn", {"num_weight_heads": 2}),
    "no convolution": ("rnn", {"conv_width": None}),
    "nothing before the recurrence": ("rnn", {"conv_width": None, "activation": "none"}),
    "convolution without SiLU": ("gru", {"activation": "none"}),
    "gru, every head its own": ("gru", {}),
    "gru, one x": ("gru", {"num_input_heads": 1}),
    "gru, shared gates": ("gru", {"num_forget_input_heads": 2, "num_reset_input_heads": 1}),
    "gru, shared weights": ("gru", {"num_weight_heads": 1, "num_forget_weight_heads": 2, "num_reset_weight_heads": 1}),
    "gru, no convolution": ("gru", {"conv_width": None}),
}


def build(name: str, **values: Any) -> Mixer:
    torch.manual_seed(0)
    plugin = registry.get(name)
    options = plugin.options(**{"num_heads": 4, "head_dim": 3, **values})
    options.check(8)
    mixer = plugin.module(options, 8).double()
    assert isinstance(mixer, Mixer)
    return mixer


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_figures_of_its_formulas_and_goes_on_from_its_state(form: str) -> None:
    name, values = FORMS[form]
    mixer, x = build(name, **values), torch.randn(2, 7, 8, dtype=torch.float64)
    options = mixer.options
    assert isinstance(options, RNNOptions)
    first, state = mixer(x[:, :3])
    assert state is not None
    assert options.num_parameters(8) == sum(parameter.numel() for parameter in mixer.parameters())
    assert options.state_size(8) == state["recurrent"][0].numel() == 12
    assert options.cache_size(8, 7) == (state["conv"][0].numel() if "conv" in state else 0)
    second, _ = mixer(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), mixer(x)[0])


def filtered(x: Tensor, mixer: RNN) -> Tensor:
    assert mixer.conv is not None
    padded = torch.cat([torch.zeros(3, x.shape[1], dtype=x.dtype), x])
    return functional.silu(torch.stack([(padded[t : t + 4].T * mixer.conv.weight).sum(-1) for t in range(len(x))]))


def wrapped(rows: Tensor, g: Tensor, mixer: RNN) -> Tensor:
    gated = rows * functional.silu(g)
    return gated * (gated.square().mean(-1, keepdim=True) + 1e-5).rsqrt() @ mixer.out_proj.weight.T


@torch.no_grad()
def test_the_rnn_block_is_the_published_one() -> None:
    mixer, x = build("rnn", weight_init="orthogonal"), torch.randn(1, 6, 8, dtype=torch.float64)
    assert isinstance(mixer, RNN)
    mixer.reset_parameters(0.5, 0.5)
    inputs, g = (x[0] @ mixer.in_proj.weight.T).split([12, 12], dim=-1)
    inputs = filtered(inputs, mixer)
    rows = torch.zeros(6, 12, dtype=torch.float64)
    for n in range(4):
        part, h = slice(3 * n, 3 * n + 3), torch.zeros(3, dtype=torch.float64)
        for t in range(6):
            h = rows[t, part] = torch.tanh(h @ mixer.weight[n] + inputs[t, part])
    torch.testing.assert_close(mixer(x)[0][0], wrapped(rows, g, mixer))


@torch.no_grad()
@pytest.mark.parametrize("activation", ["silu", "none"])
def test_without_a_convolution_x_passes_the_activation_alone(activation: str) -> None:
    mixer, x = build("rnn", conv_width=None, activation=activation), torch.randn(1, 6, 8, dtype=torch.float64)
    assert isinstance(mixer, RNN)
    mixer.reset_parameters(0.5, 0.5)
    inputs, g = (x[0] @ mixer.in_proj.weight.T).split([12, 12], dim=-1)
    inputs = functional.silu(inputs) if activation == "silu" else inputs
    rows, _ = rnn(inputs.reshape(1, 6, 4, 3), mixer.weight)
    torch.testing.assert_close(mixer(x)[0][0], wrapped(rows[0].flatten(1), g, mixer))


@torch.no_grad()
def test_the_gru_block_is_the_published_one_its_gates_not_convolved() -> None:
    mixer, x = build("gru", weight_init="orthogonal"), torch.randn(1, 6, 8, dtype=torch.float64)
    assert isinstance(mixer, GRU)
    mixer.reset_parameters(0.5, 0.5)
    inputs, forget, reset, g = (x[0] @ mixer.in_proj.weight.T).split([12, 12, 12, 12], dim=-1)
    inputs = filtered(inputs, mixer)
    rows = torch.zeros(6, 12, dtype=torch.float64)
    for n in range(4):
        part, h = slice(3 * n, 3 * n + 3), torch.zeros(3, dtype=torch.float64)
        for t in range(6):
            f = torch.sigmoid(h @ mixer.forget_weight[n] + forget[t, part])
            r = torch.sigmoid(h @ mixer.reset_weight[n] + reset[t, part])
            h = rows[t, part] = f * h + (1 - f) * torch.tanh((r * h) @ mixer.weight[n] + inputs[t, part])
    torch.testing.assert_close(mixer(x)[0][0], wrapped(rows, g, mixer))


@pytest.mark.parametrize(("name", "weights"), [("rnn", 1), ("gru", 3)])
def test_weights_start_as_asked_for_each_head_its_own(name: str, weights: int) -> None:
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    identity, orthogonal = build(name), build(name, weight_init="orthogonal", weight_init_gain=0.5)
    names = [key for key, value in identity.named_parameters() if value.ndim == 3]
    assert len(names) == weights
    for key in names:
        assert torch.equal(identity.get_parameter(key), eye)
        drawn = 2 * orthogonal.get_parameter(key)
        torch.testing.assert_close(drawn @ drawn.mT, eye, rtol=0, atol=1e-6)  # drawn in float32
        assert not torch.allclose(drawn[0], drawn[1])


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_clipping_reaches_the_gradient_carried_through_time(name: str) -> None:
    x = torch.randn(1, 30, 8, dtype=torch.float64)
    gradients = []
    for clip in (None, 1e-3):
        mixer = build(name, gradient_clip=clip)
        mixer.reset_parameters(0.5, 0.5)
        mixer(x)[0].square().sum().backward()
        gradients.append(mixer.get_parameter("weight").grad)
    assert gradients[0] is not None
    assert not torch.allclose(*gradients, rtol=0.1)


def test_the_counts_of_a_gru_are_those_of_its_options() -> None:
    options = GRUOptions(num_heads=4, num_forget_input_heads=2, num_reset_weight_heads=1)
    assert options.inputs() == {"x": 4, "forget": 2, "reset": 4}
    assert options.weights() == {"weight": 4, "forget_weight": 4, "reset_weight": 1}
