"""Cases of the ops with a vector state per head, and their kernels' errors against the float64 reference.

`python -m tests.kernels.vector_cases` runs them where TRITON_INTERPRET says so and prints the errors as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archsearch.kernels.gru.gpu.custom_op import gru_triton
from archsearch.kernels.gru.op import gru
from archsearch.kernels.rnn.gpu.custom_op import rnn_triton
from archsearch.kernels.rnn.op import rnn

Op = Callable[..., tuple[Tensor, Tensor]]

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""||a - b|| / ||b|| against the float64 reference on the same rounded inputs: a few units of the dtype's rounding."""

PARTS = {"rnn": 1, "gru": 3}  # inputs, and as many weights
REFERENCE: dict[str, Op] = {"rnn": rnn, "gru": gru}
KERNELS: dict[str, Op] = {"rnn": rnn_triton, "gru": gru_triton}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`counts`: heads of the inputs, then of the weights (None: all `heads`); `scale`: of an orthogonal W (0: W = I).

    `final`: the final state has a gradient; `y`: the output has.
    """

    op: str
    batch: int = 1
    steps: int = 26
    heads: int = 2
    head_dim: int = 16
    counts: tuple[int, ...] | None = None
    clip: float | None = None
    state: bool = False
    final: bool = True
    y: bool = True
    bounds: tuple[int, ...] | None = None
    scale: float = 1.0
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return the inputs (slices of wider rows), the weights (float32), the state and cu_seqlens."""
        generator = torch.Generator(device=device).manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        parts, size = PARTS[self.op], self.head_dim
        counts = self.counts or (self.heads,) * (2 * parts)
        wide = random(self.batch, self.steps, sum(counts[:parts]) * size + 5).to(self.dtype)[..., 5:]
        inputs = [x.unflatten(-1, (-1, size)) for x in wide.split([count * size for count in counts[:parts]], dim=-1)]
        if self.op == "gru":
            inputs[1] = inputs[1] + 2  # states that last
        weights = [self._weight(random(count, size, size)) for count in counts[parts:]]
        sequences = self.batch if self.bounds is None else len(self.bounds) - 1
        state = random(sequences, max(counts), size) if self.state else None
        bounds = None if self.bounds is None else torch.tensor(self.bounds, device=device)
        return [*inputs, *weights, state, bounds]

    def _weight(self, normal: Tensor) -> Tensor:
        if not self.scale:
            return torch.eye(normal.shape[-1], device=normal.device).expand_as(normal).contiguous()
        q: Tensor = torch.linalg.qr(normal.double().cpu())[0]
        return (self.scale * q).float().to(normal.device)

    def kernels(self, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        *tensors, state, bounds = given
        return KERNELS[self.op](*tensors, state, self.clip, bounds)

    def reference(self, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        *tensors, state, bounds = given
        options = {"initial_state": state, "gradient_clip": self.clip, "cu_seqlens": bounds, "backend": "reference"}
        return REFERENCE[self.op](*tensors, **options)


SMALL = tuple(
    case
    for op, parts in PARTS.items()
    for case in (
        Case(op=op),
        Case(op=op, batch=2, heads=3, clip=0.5, state=True, steps=9),
        Case(op=op, batch=3, steps=1, heads=5, head_dim=1),
        Case(op=op, steps=2, heads=3, head_dim=5, y=False, state=True, clip=0.1),
        Case(op=op, steps=5, head_dim=19, heads=1, final=False, scale=0.5),
        Case(op=op, steps=2, head_dim=33, heads=1, state=True),
        Case(op=op, bounds=(0, 1, 3, 12), steps=12),
        Case(op=op, bounds=(0, 5, 6, 12), steps=12, state=True, clip=0.5),
        Case(op=op, steps=3, counts=(4, 1, 2, 1, 4, 2)[: 2 * parts], head_dim=3, heads=4),
        Case(op=op, steps=3, counts=(1, 4, 2, 2, 1, 4)[: 2 * parts], head_dim=3, heads=4, state=True),
    )
)
INTERPRETER = (*SMALL, *(Case(op=op, steps=10, dtype=torch.float16, state=True, clip=0.5) for op in PARTS))


def gpu_cases() -> list[Case]:
    """Return the interpreter's cases and sizes of real models, in every dtype."""
    real = (
        case
        for op in PARTS
        for case in (
            Case(op=op, batch=2, steps=1000, heads=85, clip=1.0, scale=0.0),
            Case(op=op, steps=1000, heads=128, clip=1.0, state=True),
            Case(op=op, steps=1000, heads=85, clip=1.0, bounds=(0, 1, 63, 64, 700, 1000)),
            Case(op=op, batch=3, steps=100, heads=7, head_dim=32, state=True),
            Case(op=op, batch=2, steps=100, heads=3, head_dim=64, state=True),
        )
    )
    cases = (*SMALL, *real)
    return [replace(case, dtype=dtype) for dtype in LIMITS for case in cases]


def errors(case: Case, device: str) -> dict[str, float]:
    """Return the relative errors of the outputs and of every gradient, by name."""
    given = case.draw(device)
    exact = [x.double() if x is not None and x.is_floating_point() else x for x in given]
    actual, expected = _results(case, case.kernels, given), _results(case, case.reference, exact)
    return {name: _relative_error(actual[name], expected[name]) for name in expected}


def _results(case: Case, function: Op, given: list[Tensor | None]) -> dict[str, Tensor]:
    leaves = [x.detach() if x is not None else x for x in given]
    wanted = {f"d{i}": x for i, x in enumerate(leaves) if x is not None and x.is_floating_point()}
    for x in wanted.values():
        x.requires_grad_()
    outputs = function(*leaves)
    generator = torch.Generator(device=outputs[0].device).manual_seed(1)
    used = [x for x, use in zip(outputs, (case.y, case.final), strict=True) if use]
    from_above = [torch.randn(x.shape, generator=generator, device=x.device).to(case.dtype).to(x.dtype) for x in used]
    gradients = torch.autograd.grad(used, list(wanted.values()), from_above)
    return {"y": outputs[0], "final": outputs[1], **dict(zip(wanted, gradients, strict=True))}


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    error = (actual.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    return error.nan_to_num(torch.inf).item()


if __name__ == "__main__":
    print(json.dumps({str(case): errors(case, "cpu") for case in INTERPRETER}))
