from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch import mlp_registry
from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.mlp_registry import MLPOptions, register_mlp
from archsearch.model.language_model import HybridLM
from archsearch.model.mlp.auxiliary import collect_auxiliary_losses
from archsearch.model.mlp.common import MLP
from archsearch.model.mlp.moe import MoE, MoEOptions, load_balancing_loss
from archsearch.model.mlp.swiglu import SwiGLU, SwiGLUOptions
from tests.largest import Largest

HIDDEN, WIDTH = 6, 5
SMALL = {"type": "moe", "num_experts": 6, "experts_per_token": 2, "intermediate_size": 5}


def build(experts: int, chosen: int, dtype: torch.dtype = torch.float64, **options: Any) -> MoE:
    """Return experts with weights large enough that every part of them shows in the output."""
    torch.manual_seed(0)
    values = {"num_experts": experts, "experts_per_token": chosen, "intermediate_size": WIDTH, **options}
    moe = MoE(MoEOptions(**values), HIDDEN)
    moe.reset_parameters(0.5, 0.5)
    return moe.to(dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (functional.silu(gate) * up)


def dense(moe: MoE, x: Tensor) -> Tensor:
    """Loop over tokens and all experts, those that were not chosen by weight 0."""
    rows = []
    for token in x.flatten(0, -2):
        logits = moe.router.weight @ token
        kept = logits >= logits.sort(descending=True).values[moe.options.experts_per_token - 1]
        weights = logits.softmax(0) * kept
        if moe.options.normalize:
            weights = weights / weights.sum()
        experts = zip(weights, moe.gate_up_proj, moe.down_proj, strict=True)
        row = sum(weight * swiglu(token, gate_up, down) for weight, gate_up, down in experts)
        if moe.shared_expert is not None:
            row = row + swiglu(token, moe.shared_expert.gate_up_proj.weight, moe.shared_expert.down_proj.weight)
        rows.append(row)
    return torch.stack(rows).reshape(x.shape)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shared", [None, 7])
@pytest.mark.parametrize(
    ("experts", "chosen", "shape"),
    [(5, 2, (3, 7)), (4, 4, (2, 5)), (4, 1, (2, 5)), (1, 1, (1, 3)), (5, 3, (1, 1)), (40, 2, (1, 3))],
)
def test_experts_equal_a_dense_loop_over_all_of_them(
    experts: int, chosen: int, shape: tuple[int, int], shared: int | None, normalize: bool
) -> None:
    moe = build(experts, chosen, shared_intermediate_size=shared, normalize=normalize)
    x = draw(*shape, HIDDEN).requires_grad_()
    actual, expected = moe(x), dense(moe, x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    upstream, leaves = draw(*shape, HIDDEN) + 1, [x, *moe.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(actual, leaves, upstream),
        torch.autograd.grad(expected, leaves, upstream),
        rtol=1e-9,
        atol=1e-11,
    )


def test_experts_that_no_token_chose_get_a_gradient_of_zero() -> None:
    moe = build(40, 2)
    moe(draw(1, 3, HIDDEN)).sum().backward()
    assert moe.gate_up_proj.grad is not None
    used = moe.gate_up_proj.grad.abs().sum((1, 2)) > 0
    assert 2 <= used.sum() <= 6


@pytest.mark.parametrize("larger", [0, 1])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_router_tells_apart_what_bfloat16_cannot(larger: int, autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    moe = build(2, 1, dtype)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[larger, :2] = torch.tensor([256.0, 1.0])
        moe.router.weight[1 - larger, :2] = torch.tensor([256.0, 0.5])  # 257 and 256.5 are both 256 in bfloat16
        moe.down_proj[1 - larger] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = moe(torch.ones(1, 1, HIDDEN, dtype=dtype))
    assert y.dtype == torch.bfloat16
    assert y.abs().sum() > 0


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_changes_the_output_by_rounding_only(autocast: bool) -> None:
    # all experts, so that a rounded input cannot choose others
    exact = build(3, 3, torch.float32, shared_intermediate_size=4)
    expected = exact(draw(2, 9, HIDDEN, dtype=torch.float32))
    dtype = torch.float32 if autocast else torch.bfloat16
    moe = build(3, 3, dtype, shared_intermediate_size=4)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = moe(draw(2, 9, HIDDEN, dtype=dtype))
    assert ((y.float() - expected).norm() / expected.norm()).item() < 0.03
    y.sum().backward()
    assert {parameter.grad.dtype for parameter in moe.parameters() if parameter.grad is not None} == {dtype}


def test_no_tensor_has_a_row_for_every_token_and_expert() -> None:
    moe, x = build(32, 2, torch.float32), draw(4, 64, HIDDEN, dtype=torch.float32).requires_grad_()
    with Largest() as largest:
        moe(x).sum().backward()
    assert largest.elements <= max(256 * 2 * 2 * WIDTH, moe.gate_up_proj.numel(), 256 * 32)
    assert largest.elements < 256 * 32 * HIDDEN


def test_weights_are_drawn_with_the_scales_asked_for() -> None:
    options = MoEOptions(num_experts=8, experts_per_token=2, intermediate_size=64, shared_intermediate_size=64)
    moe = MoE(options, 64)
    moe.reset_parameters(0.02, 0.001)
    assert moe.shared_expert is not None
    weights = [moe.router.weight, moe.gate_up_proj, moe.shared_expert.gate_up_proj.weight]
    back = [moe.down_proj, moe.shared_expert.down_proj.weight]
    assert [weight.std().item() for weight in weights] == pytest.approx([0.02] * 3, rel=0.1)
    assert [weight.std().item() for weight in back] == pytest.approx([0.001] * 2, rel=0.1)


@pytest.mark.parametrize("shared", [None, 7])
def test_figures_are_those_of_the_built_module(shared: int | None) -> None:
    moe = build(5, 2, shared_intermediate_size=shared)
    options, expert = moe.options, 3 * HIDDEN * WIDTH
    assert options.num_parameters(HIDDEN) == sum(parameter.numel() for parameter in moe.parameters())
    assert options.active_parameters(HIDDEN) == options.num_parameters(HIDDEN) - 3 * expert
    assert options.flops_per_token(HIDDEN) == 2 * (2 * expert + HIDDEN * 5 + 3 * HIDDEN * (shared or 0))
    plain = SwiGLUOptions(intermediate_size=7)
    assert plain.num_parameters(HIDDEN) == plain.active_parameters(HIDDEN) == 3 * 7 * HIDDEN
    assert sum(parameter.numel() for parameter in SwiGLU(plain, HIDDEN).parameters()) == 3 * 7 * HIDDEN


def test_the_balancing_loss_is_by_hand_what_it_is() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2], [0.6, 0.3, 0.1]], requires_grad=True)
    chosen = torch.tensor([[0, 1], [1, 2], [0, 1]])
    scored = torch.tensor([True, True, False])
    shares, means = [1 / 4, 2 / 4, 1 / 4], [0.3, 0.5, 0.2]  # of the two scored tokens
    loss = load_balancing_loss(probabilities, chosen, scored)
    assert loss.item() == pytest.approx(3 * sum(f * p for f, p in zip(shares, means, strict=True)))
    (gradient,) = torch.autograd.grad(loss, probabilities)
    torch.testing.assert_close(gradient, torch.tensor([[3 / 8, 6 / 8, 3 / 8]] * 2 + [[0.0] * 3]))


def test_an_even_load_costs_1_and_a_single_expert_their_number() -> None:
    even = torch.full((4, 4), 0.25)
    everyone = torch.ones(4, dtype=torch.bool)
    rotated = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    assert load_balancing_loss(even, rotated, everyone).item() == pytest.approx(1)
    alone = torch.tensor([[1.0, 0, 0, 0]] * 4)
    assert load_balancing_loss(alone, torch.zeros(4, 1, dtype=torch.long), everyone).item() == pytest.approx(4)


def test_losses_are_collected_around_a_forward_pass_only() -> None:
    moe, x = build(5, 2, aux_loss_weight=0.25), draw(1, 8, HIDDEN)
    probabilities = (x[0] @ moe.router.weight.T).softmax(-1)
    with collect_auxiliary_losses(torch.ones(1, 8, dtype=torch.bool)) as auxiliary:
        moe(x)
        moe(x)
    moe(x)
    expected = load_balancing_loss(probabilities, probabilities.topk(2).indices, torch.ones(8, dtype=torch.bool))
    total = auxiliary.total()
    assert total is not None
    torch.testing.assert_close(total, 2 * 0.25 * expected)
    with collect_auxiliary_losses(torch.ones(1, 8, dtype=torch.bool)) as auxiliary:
        build(5, 2, aux_loss_weight=0.0)(x)
        SwiGLU(SwiGLUOptions(intermediate_size=4), HIDDEN).double()(x)
    assert auxiliary.total() is None


def language_model(pattern: str = "MA", **changes: Any) -> HybridLM:
    torch.manual_seed(0)
    values = {"hidden_size": 16, "vocab_size": 11, "pattern": pattern, "mlp": SMALL, "init_std": 0.3, **changes}
    values.setdefault("mixers", {"A": {"type": "attention", "num_heads": 2}})
    return HybridLM(Architecture.from_dict(values, Where("x"))).double()


def test_a_model_of_experts_decodes_and_packs_like_any_other() -> None:
    model, tokens = language_model(), torch.randint(11, (2, 9))
    whole, _ = model(tokens)
    states, parts = None, []
    for token in tokens.split(1, dim=1):
        logits, states = model(token, states)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    packed, _ = model(tokens, None, torch.tensor([0, 4, 9, 18]))
    alone = [model(part[None])[0][0] for part in tokens.flatten().split([4, 5, 9])]
    torch.testing.assert_close(packed.reshape(18, -1), torch.cat(alone))


def test_each_letter_has_its_own_mlp() -> None:
    model = language_model("MAM", mlps={"A": {"type": "swiglu", "intermediate_size": 24}})
    assert [type(block.mlp) for block in model.blocks] == [MoE, SwiGLU, MoE]
    assert model.blocks[1].mlp.down_proj.weight.shape == (16, 24)
    scale = 0.3 / 6**0.5
    assert model.blocks[0].mlp.down_proj.std().item() == pytest.approx(scale, rel=0.15)
    assert sum(p.numel() for p in model.parameters()) == model.architecture.num_parameters(head=True)


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp_registry.names()
    monkeypatch.setattr(mlp_registry, "_plugins", dict(mlp_registry._plugins))


@pytest.mark.usefixtures("_own_registry")
def test_a_third_kind_is_one_options_class_and_one_module() -> None:
    @dataclass(frozen=True, kw_only=True)
    class ScaleOptions(MLPOptions):
        scale: float = 2.0

        def check(self, hidden_size: int) -> None: ...

        def num_parameters(self, hidden_size: int) -> int:
            return hidden_size

        def shape(self) -> str:
            return f"times {self.scale}"

    @register_mlp("scale", options=ScaleOptions)
    class Scale(MLP):
        def __init__(self, options: ScaleOptions, hidden_size: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((hidden_size,), options.scale))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

        def reset_parameters(self, init_std: float, output_std: float) -> None: ...

    model = language_model(mlp={"type": "scale", "scale": 3})
    assert model.blocks[0].mlp.weight.tolist() == [3.0] * 16
    assert sum(p.numel() for p in model.parameters()) == model.architecture.num_parameters(head=True)
    with pytest.raises(ValueError, match="MLP 'scale' is already registered by"):
        register_mlp("scale", options=ScaleOptions)(SwiGLU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts_per_token": 7}, "x: mlp.experts_per_token: must be at most num_experts; got 7 of 6"),
        ({"num_experts": 0}, "x: mlp.num_experts: must be positive; got 0"),
        ({"experts_per_token": -1}, "x: mlp.experts_per_token: must be positive; got -1"),
        ({"shared_intermediate_size": 0}, "x: mlp.shared_intermediate_size: must be positive; got 0"),
        ({"aux_loss_weight": -0.1}, "x: mlp.aux_loss_weight: must be at least 0; got -0.1"),
        ({"num_expert": 3}, "x: mlp.num_expert: unknown key (did you mean 'num_experts'?)"),
        ({"type": "mo"}, "x: mlp.type: unknown MLP 'mo' (did you mean 'moe'?); known: moe, swiglu"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        language_model(mlp={**SMALL, **changes})
    assert str(error.value).startswith(message)


def test_the_counts_of_experts_have_no_defaults() -> None:
    with pytest.raises(ConfigError, match=r"mlp\.num_experts: is required"):
        language_model(mlp={"type": "moe", "experts_per_token": 1, "intermediate_size": 4})
