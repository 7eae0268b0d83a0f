from __future__ import annotations

from typing import Any

import pytest
import torch

from archsearch.kernels.attention import op
from archsearch.kernels.rotary.op import rotate
from archsearch.mixers.attention import Attention, AttentionOptions
from tests.mixers import test_contract as contract


def test_rotation_keeps_lengths_and_shows_distances_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64)
    for distance in (0, 3, 50):
        products = [
            (rotate(q, torch.tensor([start + distance]), 1e4) * rotate(k, torch.tensor([start]), 1e4)).sum()
            for start in (0, 7, 1000)
        ]
        torch.testing.assert_close(products, [products[0]] * 3)
    torch.testing.assert_close(rotate(q, torch.tensor([9]), 1e4).norm(), q.norm())
    torch.testing.assert_close(rotate(q, torch.tensor([0]), 1e4), q)


def test_rotation_turns_the_pair_i_by_theta_to_the_minus_2_i_over_d() -> None:
    x = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    x[..., 1] = 1
    angle = torch.tensor(5 * 100.0 ** (-2 / 4), dtype=torch.float64)
    expected = torch.stack([torch.zeros(()), angle.cos(), torch.zeros(()), angle.sin()]).reshape(1, 1, 1, 4)
    torch.testing.assert_close(rotate(x, torch.tensor([5]), 100.0), expected)


@pytest.mark.parametrize("rope", [True, False])
def test_only_rope_tells_the_order_of_what_came_before(rope: bool) -> None:
    torch.manual_seed(0)
    mixer = Attention(AttentionOptions(num_heads=2, rope=rope), 8).double()
    mixer.reset_parameters(0.5, 0.5)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    swapped = x[:, [1, 0, 2, 3, 4]]
    assert torch.allclose(mixer(x)[0][:, -1], mixer(swapped)[0][:, -1]) == (not rope)


SHAPES: dict[str, dict[str, Any]] = {
    "nope": {"num_heads": 4, "head_dim": 6},
    "one key head": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 6, "rope": True, "rope_theta": 100.0},
    "window": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "window": 7},
    "window, rope": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "rope": True, "window": 7},
    "window of one": {"num_heads": 4, "head_dim": 6, "rope": True, "window": 1},
    "long window": {"num_heads": 4, "head_dim": 6, "rope": True, "window": 70},
}
CHECKS: list[tuple[str, tuple[Any, ...]]] = [
    ("test_token_by_token_is_the_whole_sequence", (100,)),
    ("test_split_anywhere_is_the_whole_sequence", ((20, 84),)),
    ("test_gradients_pass_through_a_split", ()),
    ("test_packed_documents_are_separate_documents", ([0, 1, 3, 66, 80],)),
    ("test_no_gradient_leaks_between_packed_documents", ()),
    ("test_packed_gradients_are_those_of_separate_documents", ()),
    ("test_gradients_are_those_of_finite_differences", (11,)),
    ("test_figures_are_those_of_the_built_module", ()),
    ("test_bfloat16_keeps_its_state_in_float32", ()),
    ("test_autocast_changes_the_output_by_rounding_only", ()),
    ("test_auto_is_the_reference_on_a_cpu_and_is_counted", ()),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("check", "arguments"), CHECKS, ids=[name.removeprefix("test_") for name, _ in CHECKS])
def test_every_shape_keeps_the_contract(
    shape: str, check: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(contract.OPTIONS, "attention", SHAPES[shape])
    monkeypatch.setattr(op, "MIN_BLOCK", 8)  # so that short sequences take several blocks
    getattr(contract.TestMixerContract(), check)("attention", *arguments)


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_token_sees_itself_and_the_window_minus_one_before_it(window: int, rope: bool) -> None:
    torch.manual_seed(0)
    mixer = Attention(AttentionOptions(num_heads=2, rope=rope, window=window), 8).double()
    mixer.reset_parameters(0.5, 0.5)
    x = torch.randn(1, 20, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixer(x)[0][:, 12].sum(), x)
    assert [t for t in range(20) if gradient[0, t].any()] == list(range(13 - window, 13))


@pytest.mark.parametrize("rope", [True, False])
def test_a_window_is_full_attention_over_the_last_tokens(rope: bool) -> None:
    mixers = []
    for window in (7, None):
        torch.manual_seed(0)
        mixers.append(Attention(AttentionOptions(num_heads=2, rope=rope, window=window), 8).double())
        mixers[-1].reset_parameters(0.5, 0.5)
    windowed, full = mixers
    x = torch.randn(1, 20, 8, dtype=torch.float64)
    for stop in (1, 7, 8, 20):
        torch.testing.assert_close(windowed(x)[0][:, stop - 1], full(x[:, max(0, stop - 7) : stop])[0][:, -1])


def test_a_window_keeps_the_same_memory_at_any_length() -> None:
    mixer = Attention(AttentionOptions(num_heads=2, rope=True, window=9), 8)
    state = None
    for part in torch.randn(1, 300, 8).split([250, *[1] * 50], dim=1):
        _, state = mixer(part, state)
        assert {key: x.shape[1] for key, x in state.items()} == {"key": 8, "value": 8}
        assert all(x.untyped_storage().nbytes() == 8 * 8 * 4 for x in state.values())


@pytest.mark.parametrize("window", [None, 1, 2, 7, 50])
@pytest.mark.parametrize("length", [1, 7, 20])
def test_flops_count_the_keys_that_are_seen(window: int | None, length: int) -> None:
    options = AttentionOptions(num_heads=2, num_kv_heads=1, head_dim=3, window=window)
    seen = sum(min(t + 1, window or length) for t in range(length)) / length
    products = 2 * 2 * 3 * seen
    assert options.flops_per_token(8, length) == pytest.approx(2 * (options.num_parameters(8) + products), rel=1e-12)


def test_a_window_below_one_is_refused_and_shown() -> None:
    with pytest.raises(ValueError, match="window must be positive; got 0"):
        AttentionOptions(window=0).check(128)
    assert AttentionOptions(window=512).shape() == "4 heads, window 512"
