from __future__ import annotations

import pytest
import torch

from archsearch.mixers.attention import Attention, AttentionOptions, rotate


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
