from __future__ import annotations

import torch

from archsearch.kernels.rnn.reference import rnn_loop


def test_the_loop_is_the_equation() -> None:
    torch.manual_seed(0)
    x, weight, state = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 3, 4), (3, 4, 4), (2, 3, 4)))
    states = rnn_loop(x, weight, state)
    h = state[1, 2]
    for t in range(3):
        h = torch.tanh(h @ weight[2] + x[1, t, 2])
        torch.testing.assert_close(states[1, t, 2], h)
