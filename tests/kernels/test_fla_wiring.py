"""What is handed to flash-linear-attention, checked without a GPU: stand-ins with its signatures run our loops."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.kernels.gated_delta_rule.fla import gated_delta_rule_fla
from archsearch.kernels.gated_delta_rule.reference import gated_delta_rule_loop
from archsearch.kernels.ssd.fla import ssd_fla
from archsearch.kernels.ssd.reference import ssd_loop


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, name: str, function: Any) -> None:
    fake = ModuleType(module)
    setattr(fake, name, function)
    for parent in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, module, fake)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_gated_delta_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None, **rest: Any
    ) -> tuple[Tensor, Tensor]:
        assert rest.pop("output_final_state") is True
        assert rest.pop("cu_seqlens") is None
        assert scale is not None
        return gated_delta_rule_loop(q, k, v, g, beta, scale, rest.pop("initial_state"))

    stand_in(monkeypatch, "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", chunk_gated_delta_rule)
    values = (draw(1, 6, 2, 5), draw(1, 6, 2, 5) / 3, draw(1, 6, 2, 3), -draw(1, 6, 2).abs(), draw(1, 6, 2).sigmoid())
    state = draw(1, 2, 5, 3)
    actual = gated_delta_rule_fla(*values, 0.3, state, None)
    torch.testing.assert_close(actual, gated_delta_rule_loop(*values, 0.3, state))


def test_ssd_as_gated_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float, initial_state: Tensor, **rest: Any
    ) -> tuple[Tensor, Tensor]:
        assert rest == {"output_final_state": True, "cu_seqlens": None}
        state, outputs = initial_state, []
        for t in range(q.shape[1]):
            state = g[:, t, :, None, None].exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append((scale * q[:, t, :, :, None] * state).sum(-2))
        return torch.stack(outputs, dim=1), state

    stand_in(monkeypatch, "fla.ops.simple_gla", "chunk_simple_gla", chunk_simple_gla)
    x, log_decay, b, c = draw(1, 6, 2, 3), -draw(1, 6, 2).abs(), draw(1, 6, 2, 5), draw(1, 6, 2, 5) + 1
    state = draw(1, 2, 5, 3)
    torch.testing.assert_close(ssd_fla(x, log_decay, b, c, state, None), ssd_loop(x, log_decay, b, c, state))
