"""The gated delta rule by flash-linear-attention on a GPU, against the float64 reference, at shapes never tuned too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import calls
from archsearch.kernels.fla import why_unavailable
from archsearch.kernels.gated_delta_rule.op import gated_delta_rule

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
    heads: int = 2
    value_heads: int = 2
    key: int = 64
    value: int = 64
    bounds: tuple[int, ...] | None = None
    state: bool = False
    normalise: bool = True

    def draw(self) -> list[Tensor]:
        """Return q, k, v, log_decay, beta and an initial state, rounded to bfloat16 where the kernels do."""
        generator = torch.Generator(device="cuda").manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device="cuda")

        sequence = self.batch, self.steps
        q, k = (normal(*sequence, self.heads, self.key) for _ in range(2))
        if not self.normalise:
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        v = normal(*sequence, self.value_heads, self.value)
        decay = functional.logsigmoid(normal(*sequence, self.value_heads) + 2)
        beta = torch.sigmoid(normal(*sequence, self.value_heads))
        sequences = self.batch if self.bounds is None else len(self.bounds) - 1
        state = normal(sequences, self.value_heads, self.key, self.value)
        return [*(x.bfloat16() for x in (q, k, v)), decay, beta, state]


CASES = [
    Case(heads=2, value_heads=2, key=256, value=512, steps=1000),
    Case(heads=2, value_heads=2, key=256, value=512, batch=1, steps=1000, bounds=(0, 1, 64, 700, 1000)),
    Case(heads=3, value_heads=3, key=256, value=512, batch=1),
    Case(heads=4, value_heads=4, key=32, value=64),
    Case(heads=4, value_heads=4, key=32, value=64, state=True),
    Case(heads=2, value_heads=4, key=48, value=40, state=True),
    Case(heads=1, value_heads=1, key=16, value=16, steps=9),
    Case(heads=2, value_heads=2, key=128, value=128, steps=63),
    Case(heads=2, value_heads=2, key=100, value=24, steps=65),
    Case(heads=2, value_heads=2, normalise=False),
    Case(heads=2, value_heads=2, batch=1, bounds=(0, 63, 64, 200), state=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_states_and_gradients(case: Case) -> None:
    before = calls["gated_delta_rule", "fla"]
    actual, exact = results(case, "fla", torch.bfloat16), results(case, "reference", torch.float64)
    assert calls["gated_delta_rule", "fla"] == before + 1
    errors = {name: relative_error(x, exact[name]) for name, x in actual.items()}
    assert max(errors.values()) < LIMIT, errors


def results(case: Case, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    q, k, v, decay, beta, state = (
        x.detach().to(torch.float64 if dtype == torch.float64 else x.dtype).requires_grad_() for x in case.draw()
    )
    y, final = gated_delta_rule(
        q, k, v, decay, beta, scale=case.key**-0.5, normalise=case.normalise,
        initial_state=state if case.state else None,
        cu_seqlens=None if case.bounds is None else torch.tensor(case.bounds, device="cuda"), backend=backend,
    )  # fmt: skip
    generator = torch.Generator(device="cuda").manual_seed(1)
    dy = torch.randn(y.shape, generator=generator, device="cuda").bfloat16()
    dfinal = torch.randn(final.shape, generator=generator, device="cuda")
    loss = (y * dy.to(y.dtype)).sum() + (final * dfinal.to(final.dtype)).sum()
    wanted = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta} | ({"state": state} if case.state else {})
    gradients = torch.autograd.grad(loss, list(wanted.values()))
    return {"y": y, "final": final, **dict(zip(wanted, gradients, strict=True))}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_torch_compile_breaks_no_graph() -> None:
    leaves = [x.requires_grad_() for x in CASES[3].draw()[:5]]

    def loss(*inputs: Tensor) -> Tensor:
        return gated_delta_rule(*inputs, normalise=True)[0].float().pow(2).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    actual, expected = (torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss))
    for a, b in zip(actual, expected, strict=True):
        assert relative_error(a, b.double()) < 1e-3
