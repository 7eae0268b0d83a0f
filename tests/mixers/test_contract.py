"""What every registered mixer must hold, a third party's too; one that is small by default needs no line here."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from archsearch import registry
from archsearch.kernels.dispatch import calls
from archsearch.kernels.packing import laid_out, read_documents
from archsearch.mixers.common import Mixer, State
from archsearch.registry import MixerOptions
from tests.read_back import ReadBack

HIDDEN = 16
LENGTHS = (1, 2, 63, 64, 100)
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64: only the order of sums differs

OPTIONS: dict[str, dict[str, Any]] = {  # small, and no number equal to another where a mix-up could hide
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "rope": True},
    "gated_deltanet": {"num_heads": 2, "num_value_heads": 4, "key_head_dim": 5, "value_head_dim": 3},
    "gated_deltaproduct": {
        "num_heads": 2,
        "num_value_heads": 4,
        "key_head_dim": 5,
        "value_head_dim": 3,
        "num_householder": 3,
    },
    "gru": {
        "num_heads": 4,
        "head_dim": 3,
        "num_forget_input_heads": 2,
        "num_reset_input_heads": 1,
        "num_forget_weight_heads": 1,
        "num_reset_weight_heads": 2,
        "gradient_clip": None,
    },
    "mamba2": {"num_heads": 4, "head_dim": 3, "state_dim": 5, "num_groups": 2},
    "m2rnn": {"num_heads": 4, "key_head_dim": 5, "value_head_dim": 3, "gradient_clip": None},
    "rnn": {"num_heads": 4, "head_dim": 3, "num_input_heads": 2, "gradient_clip": None},
}


def options_of(name: str) -> MixerOptions:
    options = registry.get(name).options(**OPTIONS.get(name, {}))
    options.check(HIDDEN)
    return options


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Mixer:
    """Return a mixer with weights large enough that every part of it shows in the output."""
    torch.manual_seed(seed)
    mixer = registry.get(name).module(options_of(name), HIDDEN, norm_eps=1e-5)
    assert isinstance(mixer, Mixer)
    mixer.reset_parameters(0.5, 0.5)
    return mixer.to(dtype)


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(mixer: Mixer, x: Tensor, *splits: int) -> tuple[Tensor, State]:
    """Run `x` in parts that end at `splits`, the state passed on."""
    state: State | None = None
    outputs = []
    for part in x.tensor_split(splits, dim=1):
        y, state = mixer(part, state)
        outputs.append(y)
    assert state is not None
    return torch.cat(outputs, dim=1), state


def assert_same(actual: tuple[Tensor, State], expected: tuple[Tensor, State]) -> None:
    torch.testing.assert_close(actual[0], expected[0], **EXACT)
    torch.testing.assert_close(actual[1], expected[1], **EXACT)


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("name", [*registry.names(), "leaky_average"])
class TestMixerContract:
    @pytest.mark.proves("causal")
    def test_looks_back_only(self, name: str) -> None:
        mixer, x = build(name), draw(2, 100, HIDDEN)
        for cut in (1, 37, 64, 99):
            changed = x.clone()
            changed[:, cut:] = draw(2, 100 - cut, HIDDEN, seed=2)
            torch.testing.assert_close(mixer(changed)[0][:, :cut], mixer(x)[0][:, :cut], **EXACT)
            assert not torch.allclose(mixer(changed)[0][:, cut:], mixer(x)[0][:, cut:])

    @pytest.mark.proves("step = whole")
    @pytest.mark.parametrize("length", LENGTHS)
    def test_token_by_token_is_the_whole_sequence(self, name: str, length: int) -> None:
        mixer, x = build(name), draw(2, length, HIDDEN)
        whole = run(mixer, x)
        assert whole[0].shape == x.shape
        assert_same(run(mixer, x, *range(1, length)), whole)

    @pytest.mark.proves("split = whole")
    @pytest.mark.parametrize("splits", [(1,), (2,), (36,), (63,), (64,), (99,), (20, 84)])
    def test_split_anywhere_is_the_whole_sequence(self, name: str, splits: tuple[int, ...]) -> None:
        mixer, x = build(name), draw(2, 100, HIDDEN)
        assert_same(run(mixer, x, *splits), run(mixer, x))

    @pytest.mark.proves("gradients")
    def test_gradients_pass_through_a_split(self, name: str) -> None:
        mixer, x = build(name), draw(1, 70, HIDDEN)
        weights = draw(1, 70, HIDDEN, seed=3)
        gradients = []
        for splits in ((), (30,)):
            mixer.zero_grad()
            leaf = x.clone().requires_grad_()
            (run(mixer, leaf, *splits)[0] * weights).sum().backward()
            gradients.append([leaf.grad, *(parameter.grad for parameter in mixer.parameters())])
        torch.testing.assert_close(gradients[0], gradients[1], **EXACT)

    @pytest.mark.proves("packed")
    @pytest.mark.parametrize("bounds", [[0, 1, 3, 66, 80], [0, 5], [0, 1], [0, 64, 164]])
    def test_packed_documents_are_separate_documents(self, name: str, bounds: list[int]) -> None:
        mixer, x = build(name), draw(1, bounds[-1], HIDDEN)
        packed, state = mixer(x, cu_seqlens=torch.tensor(bounds))
        alone = [mixer(x[:, start:stop])[0] for start, stop in pairwise(bounds)]
        assert state is None
        torch.testing.assert_close(packed, torch.cat(alone, dim=1), **EXACT)

    @pytest.mark.proves("packed")
    def test_no_gradient_leaks_between_packed_documents(self, name: str) -> None:
        mixer, x = build(name), draw(1, 90, HIDDEN).requires_grad_()
        y, _ = mixer(x, cu_seqlens=torch.tensor([0, 10, 75, 90]))
        (gradient,) = torch.autograd.grad(y[:, 10:75].pow(2).sum(), x)
        assert gradient[:, 10:75].abs().sum() > 0
        assert torch.equal(gradient[:, :10], torch.zeros(1, 10, HIDDEN, dtype=torch.float64))
        assert torch.equal(gradient[:, 75:], torch.zeros(1, 15, HIDDEN, dtype=torch.float64))

    @pytest.mark.proves("packed")
    def test_packed_gradients_are_those_of_separate_documents(self, name: str) -> None:
        mixer, bounds = build(name), [0, 10, 75, 90]
        x, weights = draw(1, 90, HIDDEN).requires_grad_(), draw(1, 90, HIDDEN, seed=3)
        packed, _ = mixer(x, cu_seqlens=torch.tensor(bounds))
        alone = torch.cat([mixer(x[:, i:j])[0] for i, j in pairwise(bounds)], dim=1)
        wanted = [x, *mixer.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad((packed * weights).sum(), wanted),
            torch.autograd.grad((alone * weights).sum(), wanted),
            **EXACT,
        )

    @pytest.mark.proves("packed")
    def test_bounds_that_a_model_has_read_are_not_read_again(self, name: str) -> None:
        mixer, x = build(name), draw(1, 80, HIDDEN).requires_grad_()
        documents = read_documents(torch.tensor([0, 1, 3, 66, 80]), 80, x.device)
        with laid_out(documents), ReadBack() as read_back:
            y, _ = mixer(x, cu_seqlens=documents.bounds)
            y.sum().backward()
        assert read_back.ops == []  # each would wait for a GPU to finish all its work

    @pytest.mark.proves("refusals")
    @pytest.mark.parametrize("bounds", [[0, 5], [1, 10], [0, 5, 5, 10], [0, 7, 5, 10], [0]])
    def test_bounds_that_do_not_fit_are_refused(self, name: str, bounds: list[int]) -> None:
        with pytest.raises(ValueError, match=r"cu_seqlens must increase from 0 to the length 10; got \["):
            build(name)(draw(1, 10, HIDDEN), cu_seqlens=torch.tensor(bounds))

    @pytest.mark.proves("refusals")
    def test_a_packed_batch_is_one_row_and_starts_from_nothing(self, name: str) -> None:
        mixer, bounds = build(name), torch.tensor([0, 10])
        with pytest.raises(ValueError, match="cu_seqlens needs a batch of one packed row; got batch size 2"):
            mixer(draw(2, 10, HIDDEN), cu_seqlens=bounds)
        _, state = mixer(draw(1, 10, HIDDEN))
        with pytest.raises(ValueError, match="give either state or cu_seqlens"):
            mixer(draw(1, 10, HIDDEN), state, bounds)

    @pytest.mark.proves("gradients")
    @pytest.mark.parametrize("length", [3, 11])
    def test_gradients_are_those_of_finite_differences(self, name: str, length: int) -> None:
        mixer = build(name)
        names, parameters = zip(*((key, value.detach()) for key, value in mixer.named_parameters()), strict=True)
        _, state = mixer(draw(2, 4, HIDDEN, seed=4))
        assert state is not None
        remembered = {key: value.detach() for key, value in state.items()}

        def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            initial = dict(zip(remembered, rest[: len(remembered)], strict=True))
            weights = dict(zip(names, rest[len(remembered) :], strict=True))
            y, final = functional_call(mixer, weights, (x, initial))
            return (y, *final.values())

        inputs = [draw(2, length, HIDDEN), *remembered.values(), *parameters]
        assert torch.autograd.gradcheck(function, [x.clone().requires_grad_() for x in inputs], fast_mode=True)

    @pytest.mark.proves("figures")
    def test_figures_are_those_of_the_built_module(self, name: str) -> None:
        options, mixer, length = options_of(name), build(name), 10
        _, state = run(mixer, draw(1, length, HIDDEN))
        assert options.num_parameters(HIDDEN) == sum(parameter.numel() for parameter in mixer.parameters())
        assert options.state_size(HIDDEN) == sum(x.numel() for key, x in state.items() if key == "recurrent")
        assert options.cache_size(HIDDEN, length) == sum(x.numel() for key, x in state.items() if key != "recurrent")

    @pytest.mark.proves("figures")
    def test_flops_hold_every_matrix_product_and_grow_only_with_attention(self, name: str) -> None:
        options, mixer = options_of(name), build(name)
        linear = sum(module.weight.numel() for module in mixer.modules() if isinstance(module, nn.Linear))
        short, long = (options.flops_per_token(HIDDEN, length) for length in (64, 128))
        assert short >= 2 * linear
        assert (long > short) == (options.cache_size(HIDDEN, 128) > options.cache_size(HIDDEN, 64))

    @pytest.mark.proves("defaults")
    def test_defaults_work_at_the_size_of_a_bare_pattern(self, name: str) -> None:
        plugin = registry.get(name)
        options = plugin.options()
        options.check(128)
        mixer = plugin.module(options, 128, norm_eps=1e-5)
        assert options.num_parameters(128) == sum(parameter.numel() for parameter in mixer.parameters())
        assert mixer(torch.randn(1, 3, 128))[0].shape == (1, 3, 128)

    @pytest.mark.proves("defaults")
    def test_weights_are_drawn_with_the_scales_asked_for(self, name: str) -> None:
        torch.manual_seed(0)
        plugin = registry.get(name)
        mixer = plugin.module(plugin.options(), 128, norm_eps=1e-5)
        assert isinstance(mixer, Mixer)
        mixer.reset_parameters(0.02, 0.001)
        for module in mixer.modules():
            if isinstance(module, nn.Linear):
                wanted = 0.001 if module is mixer.out_proj else 0.02
                assert module.weight.std().item() == pytest.approx(wanted, rel=0.1)
        assert all(parameter.isfinite().all() for parameter in mixer.parameters())
        assert mixer.no_weight_decay <= {key.rsplit(".", 1)[-1] for key, _ in mixer.named_parameters()}

    @pytest.mark.proves("bf16")
    def test_bfloat16_keeps_its_state_in_float32(self, name: str) -> None:
        expected, _ = build(name, torch.float32)(draw(2, 40, HIDDEN, dtype=torch.float32))
        mixer = build(name, torch.bfloat16)
        y, state = run(mixer, draw(2, 40, HIDDEN, dtype=torch.bfloat16), 25)
        assert y.dtype == torch.bfloat16
        assert {key: x.dtype for key, x in state.items()} == {
            key: torch.float32 if key == "recurrent" else torch.bfloat16 for key in state
        }
        assert relative_error(y, expected) < 0.05  # bf16 keeps 8 bits; errors of a few products add up

    @pytest.mark.proves("bf16")
    def test_autocast_changes_the_output_by_rounding_only(self, name: str) -> None:
        mixer, x = build(name, torch.float32), draw(2, 40, HIDDEN, dtype=torch.float32)
        expected, _ = mixer(x)
        with torch.autocast("cpu", torch.bfloat16):
            y, state = run(mixer, x, 25)
        assert relative_error(y, expected) < 0.05
        assert state.get("recurrent", torch.zeros(1)).dtype == torch.float32
        y.sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in mixer.parameters())

    @pytest.mark.proves("backends")
    def test_auto_is_the_reference_on_a_cpu_and_is_counted(self, name: str) -> None:
        mixer, op = build(name), registry.get(name).module.backends.op  # type: ignore[union-attr]
        before = calls.copy()
        mixer(draw(1, 20, HIDDEN))
        assert {backend: n for (of, backend), n in (calls - before).items() if of == op} == {"reference": 1}

    @pytest.mark.proves("backends")
    def test_a_backend_that_cannot_run_is_refused(self, name: str) -> None:
        mixer = build(name)
        mixer.backend = "abacus"
        with pytest.raises(ValueError, match=r"unknown backend 'abacus'; known: auto, .*reference"):
            mixer(draw(1, 20, HIDDEN))
        for backend, reason in registry.get(name).missing_backends().items():
            mixer.backend = backend
            if reason is not None:
                with pytest.raises(ValueError, match=f"backend '{backend}' cannot be used: "):
                    mixer(draw(1, 20, HIDDEN))


def test_every_test_of_the_contract_says_what_it_proves() -> None:
    tests = {name: test for name, test in vars(TestMixerContract).items() if name.startswith("test_")}
    assert tests
    assert all("proves" in {mark.name for mark in test.pytestmark} for test in tests.values())


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("attention", {"num_heads": 3}, r"num_heads must divide the hidden size.*; got num_heads=3 and 16"),
        ("attention", {"num_kv_heads": 3}, r"num_kv_heads must divide num_heads; got num_kv_heads=3 and num_heads=4"),
        ("attention", {"num_heads": 0}, r"num_heads must be positive; got 0"),
        ("attention", {"head_dim": -1}, r"head_dim must be positive; got -1"),
        ("attention", {"head_dim": 5, "rope": True}, r"rope needs an even head_dim; got 5"),
        ("attention", {"rope_theta": 0.0}, r"rope_theta must be positive; got 0.0"),
        (
            "gated_deltanet",
            {"num_value_heads": 6},
            r"must divide num_value_heads; got num_heads=4 and num_value_heads=6",
        ),
        ("gated_deltanet", {"key_head_dim": 0}, r"key_head_dim must be positive; got 0"),
        ("gated_deltanet", {"conv_width": 0}, r"conv_width must be positive; got 0"),
        ("gated_deltaproduct", {"num_householder": 0}, r"num_householder must be positive; got 0"),
        ("gated_deltaproduct", {"num_value_heads": 6}, r"num_heads must divide num_value_heads; got num_heads=4"),
        (
            "gru",
            {"num_reset_weight_heads": 3},
            r"each head count must divide num_heads, and one must equal it; got num_heads=4, .*'reset_weight': 3",
        ),
        (
            "rnn",
            {"num_input_heads": 2, "num_weight_heads": 2},
            r"one must equal it; got num_heads=4, {'x': 2, 'weight': 2}",
        ),
        ("rnn", {"num_input_heads": 0}, r"each head count must divide num_heads"),
        ("rnn", {"num_heads": 0}, r"num_heads must be positive; got 0"),
        ("rnn", {"head_dim": 0}, r"head_dim must be positive; got 0"),
        ("rnn", {"gradient_clip": 0.0}, r"gradient_clip must be positive; got 0.0"),
        ("gru", {"conv_width": 0}, r"conv_width must be positive; got 0"),
        ("mamba2", {"num_groups": 3}, r"num_groups must divide num_heads; got num_groups=3 and num_heads=4"),
        ("mamba2", {"state_dim": 0}, r"state_dim must be positive; got 0"),
        ("mamba2", {"dt_init_min": 0.2}, r"0 < dt_init_min <= dt_init_max must hold; got 0.2 and 0.1"),
        (
            "m2rnn",
            {"num_key_heads": 3},
            r"each head count must divide num_heads, and one must equal it; got num_heads=4",
        ),
        ("m2rnn", {"value_head_dim": 0}, r"value_head_dim must be positive; got 0"),
        ("m2rnn", {"gradient_clip": 0.0}, r"gradient_clip must be positive; got 0.0"),
        ("m2rnn", {"conv_width": 0}, r"conv_width must be positive; got 0"),
        ("m2rnn", {"alpha_init_max": -1.0}, r"0 <= alpha_init_min <= alpha_init_max .* must hold; got 0.0 and -1.0"),
        ("m2rnn", {"dt_init_floor": -1.0}, r"dt_init_floor must not be negative; got -1.0"),
    ],
)
def test_options_that_cannot_work_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.get(name).options(**values).check(HIDDEN)
