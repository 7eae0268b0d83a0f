"""Cases of the fused passes: short convolution, skip with gate and RMSNorm, sum with RMSNorm, rotary, an MLP's gate.

`python -m tests.kernels.fused_cases` runs them where TRITON_INTERPRET says so and prints the errors as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archsearch.kernels.add_rms_norm.gpu.custom_op import add_rms_norm_triton
from archsearch.kernels.add_rms_norm.op import add_rms_norm
from archsearch.kernels.gated_rms_norm.gpu.custom_op import gated_rms_norm_triton
from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
from archsearch.kernels.packing import document_starts
from archsearch.kernels.rotary.gpu.custom_op import rotate_triton
from archsearch.kernels.rotary.op import rotate
from archsearch.kernels.short_conv.gpu.custom_op import short_conv_triton
from archsearch.kernels.short_conv.op import short_conv
from archsearch.kernels.swiglu.gpu.custom_op import swiglu_triton
from archsearch.kernels.swiglu.op import swiglu

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""||a - b|| / ||b|| against the float64 reference on the same rounded inputs: a few units of the dtype's rounding."""


@dataclass(frozen=True, kw_only=True)
class ConvCase:
    batch: int = 2
    steps: int = 70
    channels: int = 37
    width: int = 4
    bias: bool = False
    silu: bool = True
    taps: bool = False
    bounds: tuple[int, ...] | None = None
    parts: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return x (a slice of wider rows), weight, bias, taps and cu_seqlens."""
        random = _random(device)
        wide = random(self.batch, self.steps, self.channels + 11).to(self.dtype)
        return [
            wide[..., : self.channels],
            random(self.channels, self.width),
            random(self.channels) if self.bias else None,
            random(self.batch, self.width - 1, self.channels).to(self.dtype) if self.taps else None,
            None if self.bounds is None else torch.tensor(self.bounds, device=device),
        ]

    def kernels(self, x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, bounds: Tensor) -> Tensor:
        starts = None if self.bounds is None else document_starts(bounds, x.shape[1])
        parts = [self.channels] if self.parts is None else list(self.parts)
        return torch.cat(short_conv_triton(x, weight, bias, taps, starts, self.silu, parts), dim=-1)

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor | None, bounds: Tensor) -> Tensor:
        return short_conv(x, weight, bias, silu=self.silu, taps=taps, cu_seqlens=bounds, backend="reference")[0][0]


@dataclass(frozen=True, kw_only=True)
class NormCase:
    batch: int = 2
    steps: int = 19
    heads: int = 3
    width: int = 10
    per_head: bool = False
    gate: bool = True
    skip: bool = True
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return y, weight, gate and skip (slices of wider rows) and the skip's weight."""
        random = _random(device)
        shape = self.batch, self.steps, self.heads, self.width
        inner = self.heads * self.width
        wide = random(self.batch, self.steps, 2 * inner + 5).to(self.dtype)
        gate, skip = (part.unflatten(-1, shape[2:]) for part in wide[..., 5:].split(inner, dim=-1))
        return [
            random(*shape).to(self.dtype),
            1 + 0.3 * random(self.width if self.per_head else inner),
            gate if self.gate else None,
            skip if self.skip else None,
            random(self.heads, self.width) if self.skip else None,
        ]

    def kernels(self, y: Tensor, weight: Tensor, *rest: Tensor | None) -> Tensor:
        return gated_rms_norm_triton(y, weight, *rest, 1e-5)

    def reference(self, y: Tensor, weight: Tensor, *rest: Tensor | None) -> Tensor:
        gate, skip, factor = rest
        return gated_rms_norm(y, weight, 1e-5, gate=gate, skip=skip, skip_weight=factor, backend="reference")


@dataclass(frozen=True, kw_only=True)
class SwiGLUCase:
    rows: int = 6
    width: int = 1100
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return gate and up side by side."""
        return [_random(device)(self.rows, 2 * self.width).to(self.dtype)]

    def kernels(self, gate_up: Tensor) -> Tensor:
        return swiglu_triton(gate_up)

    def reference(self, gate_up: Tensor) -> Tensor:
        return swiglu(gate_up, backend="reference")


@dataclass(frozen=True, kw_only=True)
class AddCase:
    """`stream` and `norm`: which of the two results the gradient comes from."""

    rows: int = 37
    width: int = 10
    update: bool = True
    stream: bool = True
    norm: bool = True
    wide: bool = True
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return x (float32 where `wide`), the update and the weight."""
        random = _random(device)
        x, update = random(self.rows, self.width), random(self.rows, self.width).to(self.dtype)
        weight = 1 + 0.3 * random(self.width)
        return [x if self.wide else x.to(self.dtype), update if self.update else None, weight]

    def kernels(self, x: Tensor, update: Tensor | None, weight: Tensor) -> Tensor:
        return self._together(*add_rms_norm_triton(x, update, weight, 1e-5, self.dtype))

    def reference(self, x: Tensor, update: Tensor | None, weight: Tensor) -> Tensor:
        return self._together(*add_rms_norm(x, update, weight, 1e-5, backend="reference"))

    def _together(self, total: Tensor, normed: Tensor) -> Tensor:
        terms = (total if self.stream else total.detach(), normed if self.norm else normed.detach())
        return torch.stack([term.to(total.dtype) for term in terms])


@dataclass(frozen=True, kw_only=True)
class RotaryCase:
    batch: int = 2
    heads: int = 3
    width: int = 6
    positions: tuple[int, ...] = (*range(30), *range(7))
    dtype: torch.dtype = torch.float32

    def draw(self, device: str) -> list[Tensor | None]:
        """Return x (a slice of more heads) and the positions."""
        x = _random(device)(self.batch, len(self.positions), self.heads + 2, self.width)
        return [x[:, :, 1:-1].to(self.dtype), torch.tensor(self.positions, device=device)]

    def kernels(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate_triton(x, positions, 10000.0)

    def reference(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions, 10000.0, backend="reference")


Case = ConvCase | NormCase | AddCase | RotaryCase | SwiGLUCase

INTERPRETER: tuple[Case, ...] = (
    ConvCase(),
    ConvCase(silu=False, bias=True, width=3),
    ConvCase(taps=True, bias=True),
    ConvCase(taps=True, steps=2, channels=5),
    ConvCase(batch=1, steps=1, channels=1, width=1),
    ConvCase(batch=1, bounds=(0, 1, 3, 66, 70)),
    ConvCase(parts=(8, 29), bias=True),
    ConvCase(batch=1, channels=300, parts=(1, 264, 35), taps=True),
    NormCase(),
    NormCase(per_head=True),
    NormCase(per_head=True, skip=False, width=7, heads=5),
    NormCase(gate=False),
    NormCase(gate=False, skip=False, batch=1, steps=1, heads=1, width=3),
    AddCase(),
    AddCase(width=130, norm=False),
    AddCase(rows=1, width=3, stream=False),
    AddCase(update=False),
    AddCase(rows=2100, width=5, update=False, stream=False),
    RotaryCase(),
    RotaryCase(batch=1, heads=1, width=2, positions=(5,)),
    SwiGLUCase(),
    SwiGLUCase(rows=1, width=3),
)


def gpu_cases() -> list[Case]:
    """Return the interpreter's cases and sizes of real models, in every dtype."""
    real: tuple[Case, ...] = (
        ConvCase(steps=1000, channels=1472),
        ConvCase(steps=1000, channels=1472, parts=(64, 64, 1344)),
        ConvCase(batch=1, steps=1000, channels=1472, bounds=(0, 63, 64, 900, 1000)),
        NormCase(steps=1000, heads=84, width=16),
        NormCase(steps=500, heads=2, width=512, per_head=True, skip=False),
        NormCase(steps=100, heads=64, width=128),
        AddCase(rows=5000, width=1024),
        AddCase(rows=3000, width=1536, wide=False),
        RotaryCase(heads=16, width=64, positions=tuple(range(200))),
        SwiGLUCase(rows=2000, width=2752),
    )
    return [replace(case, dtype=dtype) for dtype in LIMITS for case in (*INTERPRETER, *real)]


def errors(case: Case, device: str) -> dict[str, float]:
    """Return the relative errors of the output and of every gradient, by name."""
    given = case.draw(device)
    exact = [x.double() if x is not None and x.is_floating_point() else x for x in given]
    actual, expected = _results(case, case.kernels, given), _results(case, case.reference, exact)
    return {name: _relative_error(actual[name], expected[name]) for name in expected}


def _results(case: Case, function: Callable[..., Tensor], given: list[Tensor | None]) -> dict[str, Tensor]:
    leaves = [x.detach().clone() if x is not None and x.is_contiguous() else x for x in given]
    wanted = {f"d{i}": x for i, x in enumerate(leaves) if x is not None and x.is_floating_point()}
    if isinstance(case, ConvCase):
        wanted.pop("d3", None)  # the kernels have no gradient of the taps
    if isinstance(case, AddCase) and not case.norm:
        wanted.pop("d2")
    for x in wanted.values():
        x.requires_grad_()
    out = function(*leaves)
    weights = _random(out.device.type)(*out.shape).to(case.dtype).to(out.dtype)
    gradients = torch.autograd.grad(out, list(wanted.values()), weights)
    return {"out": out, **dict(zip(wanted, gradients, strict=True))}


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def _random(device: str) -> Callable[..., Tensor]:
    generator = torch.Generator(device=device).manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device)


if __name__ == "__main__":
    print(json.dumps({str(case): errors(case, "cpu") for case in INTERPRETER}))
