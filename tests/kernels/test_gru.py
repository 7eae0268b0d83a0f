from __future__ import annotations

import torch

from archsearch.kernels.gru.reference import gru_loop


def test_the_loop_is_the_equation() -> None:
    torch.manual_seed(0)
    x, x_f, x_r = torch.randn(3, 2, 3, 3, 4, dtype=torch.float64)
    w, w_f, w_r = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    state = torch.randn(2, 3, 4, dtype=torch.float64)
    states = gru_loop(x, x_f, x_r, w, w_f, w_r, state)
    h = state[1, 2]
    for t in range(3):
        r = torch.sigmoid(h @ w_r[2] + x_r[1, t, 2])
        f = torch.sigmoid(h @ w_f[2] + x_f[1, t, 2])
        h = f * h + (1 - f) * torch.tanh((r * h) @ w[2] + x[1, t, 2])
        torch.testing.assert_close(states[1, t, 2], h)


def test_a_gru_whose_gates_are_shut_keeps_its_state() -> None:
    x, shut, state = torch.randn(1, 5, 1, 4), torch.full((1, 5, 1, 4), 50.0), torch.randn(1, 1, 4)
    weight, zero = torch.eye(4)[None], torch.zeros(1, 4, 4)
    kept = gru_loop(x, shut, x, weight, zero, weight, state)
    torch.testing.assert_close(kept, state[:, None].expand(1, 5, 1, 4))
    overwritten = gru_loop(x, -shut, -shut, weight, zero, zero, state)
    torch.testing.assert_close(overwritten, torch.tanh(x))
