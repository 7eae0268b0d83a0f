"""The state-space recurrence by flash-linear-attention on a GPU, against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import calls
from archsearch.kernels.fla import why_unavailable
from archsearch.kernels.ssd.op import ssd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
    pytest.mark.skipif(why_unavailable() is not None, reason=f"no fla: {why_unavailable()}"),
]

LIMIT = 2e-2  # ||a - b|| / ||b|| in bfloat16: products of chunks, then sums of them, are rounded to 8 bits


@dataclass(frozen=True, kw_only=True)
class Case:
    batch: int = 2
    steps: int = 200
    heads: int = 4
    groups: int = 1
    head_dim: int = 64
    state_dim: int = 32
    bounds: tuple[int, ...] | None = None
    state: bool = False


CASES = [
    Case(heads=64, head_dim=19, state_dim=216, steps=1000),
    Case(heads=64, head_dim=19, state_dim=216, batch=1, steps=1000, bounds=(0, 1, 64, 700, 1000)),
    Case(heads=32, head_dim=64, state_dim=192),
    Case(),
    Case(state=True, groups=2),
    Case(heads=6, groups=3, head_dim=7, state_dim=5, state=True),
    Case(steps=9),
    Case(batch=1, bounds=(0, 63, 64, 200), state=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_states_and_gradients(case: Case) -> None:
    before = calls["ssd", "fla"]
    actual, exact = results(case, "fla", torch.bfloat16), results(case, "reference", torch.float64)
    assert calls["ssd", "fla"] == before + 1
    errors = {name: ((x.double() - exact[name]).norm() / exact[name].norm()).item() for name, x in actual.items()}
    assert max(errors.values()) < LIMIT, errors


def results(case: Case, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    sequence = case.batch, case.steps
    sequences = case.batch if case.bounds is None else len(case.bounds) - 1
    given = {
        "x": normal(*sequence, case.heads, case.head_dim).bfloat16(),
        "decay": functional.logsigmoid(normal(*sequence, case.heads) + 2),
        "B": (normal(*sequence, case.groups, case.state_dim) * case.state_dim**-0.5).bfloat16(),
        "C": (normal(*sequence, case.groups, case.state_dim) * case.state_dim**-0.5).bfloat16(),
        "state": normal(sequences, case.heads, case.state_dim, case.head_dim),
    }
    wide = dtype == torch.float64
    leaves = {name: (x.double() if wide else x.clone()).requires_grad_() for name, x in given.items()}
    state = leaves["state"] if case.state else None
    y, final = ssd(
        leaves["x"], leaves["decay"], leaves["B"], leaves["C"], initial_state=state,
        cu_seqlens=None if case.bounds is None else torch.tensor(case.bounds, device="cuda"), backend=backend,
    )  # fmt: skip
    dy, dfinal = normal(*y.shape).bfloat16(), normal(*final.shape)
    loss = (y * dy.to(y.dtype)).sum() + (final * dfinal.to(final.dtype)).sum()
    wanted = {name: x for name, x in leaves.items() if name != "state" or case.state}
    gradients = torch.autograd.grad(loss, list(wanted.values()))
    return {"y": y, "final": final, **dict(zip(wanted, gradients, strict=True))}
