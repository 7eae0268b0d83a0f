"""Cases of the state-space recurrence: its kernels against the float64 reference, in outputs, states and gradients.

`python -m tests.kernels.ssd_cases` runs them where TRITON_INTERPRET says so and prints the errors as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.packing import document_starts
from archsearch.kernels.ssd.gpu.custom_op import ssd_triton
from archsearch.kernels.ssd.op import ssd

Run = Callable[..., tuple[Tensor, Tensor]]

LIMITS = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 1e-2}
"""||a - b|| / ||b|| on the same rounded inputs. In float32 it is 1e-6, but for decays summed to -1500; in the others
operands of products and the states between chunks are rounded."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes of a call, and what goes in and comes back besides; `sliced` inputs are parts of wider rows and batches."""

    batch: int = 1
    steps: int = 200
    heads: int = 2
    groups: int = 1
    head_dim: int = 5
    state_dim: int = 6
    bounds: tuple[int, ...] | None = None
    state: bool = False
    final: bool = True
    decay: float = 0.2
    sliced: bool = False

    def draw(self, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the inputs by name; x, B and C, which the kernels take in low precision, are rounded to the dtype."""
        generator = torch.Generator(device=device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        sizes = [self.heads * self.head_dim, *2 * [self.groups * self.state_dim]]
        wide = normal(2 * self.batch, self.steps, 3 + sum(sizes)).to(dtype)
        x, b, c = (part if self.sliced else part.contiguous() for part in wide[::2, :, 3:].split(sizes, dim=-1))
        given = {
            "x": x.unflatten(-1, (self.heads, self.head_dim)),
            "dt": functional.softplus(normal(self.batch, self.steps, self.heads)),
            "log_decay": -self.decay * normal(self.batch, self.steps, self.heads).abs(),
            "b": b.unflatten(-1, (self.groups, self.state_dim)),
            "c": c.unflatten(-1, (self.groups, self.state_dim)),
        }
        if self.state:
            given["initial_state"] = normal(self.batch, self.heads, self.state_dim, self.head_dim)
        return given


INTERPRETER = (
    Case(steps=1, heads=1, head_dim=1, state_dim=1),
    Case(steps=9, batch=2),
    Case(steps=65, state=True, heads=4, groups=2, head_dim=7, state_dim=70),
    Case(steps=64, batch=2, sliced=True, head_dim=16, state_dim=16),
    Case(steps=330, heads=1, head_dim=19, state=True, sliced=True),
    Case(steps=128, final=False, heads=3, groups=3),
    Case(steps=100, decay=30.0),
    Case(bounds=(0, 1, 3, 64, 66, 200), decay=0.01),
    Case(bounds=(0, 64, 128), steps=128, heads=4, groups=2),
)
"""Every size 1; no whole chunk, one, two, and a rest; more heads than one program; a decay that forgets everything."""

GPU = (
    *INTERPRETER,
    Case(heads=64, head_dim=19, state_dim=216, steps=1000, batch=2, sliced=True),
    Case(heads=64, head_dim=19, state_dim=216, steps=1024, state=True, decay=0.01),
    Case(heads=64, head_dim=19, state_dim=216, steps=1000, bounds=(0, 1, 64, 700, 1000)),
    Case(heads=32, head_dim=64, state_dim=192, batch=2, state=True),
    Case(heads=64, head_dim=64, state_dim=128, groups=8, state=True),
    Case(heads=8, head_dim=32, state_dim=64, groups=2, decay=2.0),
    Case(heads=6, head_dim=128, state_dim=64, groups=3, state=True),
    Case(heads=5, head_dim=100, state_dim=33),
)


def kernels(x: Tensor, *rest: Tensor, bounds: Tensor | None = None, **states: Tensor) -> tuple[Tensor, Tensor]:
    """Run the kernels without the op's checks: under the interpreter they take float32, on a CPU."""
    starts = None if bounds is None else document_starts(bounds, x.shape[1])
    return ssd_triton(x, *rest, starts=starts, keep_state=bounds is None, **states)


def reference(*given: Tensor, bounds: Tensor | None = None, **states: Tensor) -> tuple[Tensor, Tensor]:
    return ssd(*given, cu_seqlens=bounds, keep_state=bounds is None, backend="reference", **states)


def errors(case: Case, device: str, dtype: torch.dtype, run: Run = kernels) -> dict[str, float]:
    """Return the relative errors of y, the final state and every gradient, by name; NaN counts as infinite."""
    given = case.draw(device, dtype)
    actual = results(case, run, given, dtype)
    exact = results(case, reference, {name: x.double() for name, x in given.items()}, dtype)
    if case.decay > 10 and dtype != torch.float32:  # nothing is left of a step by the next one: 1e-13 of what cancels
        del exact["dlog_decay"]
    return {name: _relative_error(actual[name], x) for name, x in exact.items()}


def results(case: Case, run: Run, given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return y, the final state and the gradients; y's own is rounded to the dtype."""
    leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
    bounds = None if case.bounds is None else torch.tensor(case.bounds, device=given["x"].device)
    inputs, states = list(leaves.values())[:5], {name: x for name, x in leaves.items() if name == "initial_state"}
    y, final = run(*inputs, bounds=bounds, **states)
    generator = torch.Generator(device=y.device).manual_seed(1)
    dy = torch.randn(y.shape, generator=generator, device=y.device).to(dtype)
    loss = (y * dy.to(y.dtype)).sum()
    if case.final:
        loss = loss + (final * torch.randn(final.shape, generator=generator, device=y.device)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    outputs = {"y": y} if case.bounds else {"y": y, "final": final}
    return {**outputs, **{f"d{name}": x for name, x in zip(leaves, gradients, strict=True)}}


def _relative_error(actual: Tensor, exact: Tensor) -> float:
    assert actual.shape == exact.shape, (actual.shape, exact.shape)
    return ((actual.double() - exact).norm() / exact.norm().clamp(min=1e-6)).nan_to_num(torch.inf).item()


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # what is not written is NaN
    print(json.dumps({str(case): errors(case, "cpu", torch.float32) for case in INTERPRETER}))
