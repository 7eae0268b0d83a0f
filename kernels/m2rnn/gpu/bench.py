"""Measure the M²RNN kernels on this GPU: `python -m archsearch.kernels.m2rnn.gpu.bench [FILE.json]`."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from archsearch.kernels.m2rnn.gpu.plan import why_unavailable
from archsearch.kernels.m2rnn.op import m2rnn


@dataclass(frozen=True, kw_only=True)
class Shape:
    batch: int
    steps: int
    heads: int
    key: int = 64
    value: int = 16

    def __str__(self) -> str:
        return f"B{self.batch} T{self.steps} N{self.heads} K{self.key} V{self.value}"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians, the spread and peak memory beyond the inputs; `first_s` is the first call, compilation included."""

    forward_ms: float
    both_ms: float
    both_min: float
    both_max: float
    runs: int
    peak_mib: float
    first_s: float


TIMED = (
    Shape(batch=8, steps=4096, heads=84),
    Shape(batch=1, steps=16384, heads=84),
    Shape(batch=4, steps=4096, heads=132),
    Shape(batch=8, steps=4096, heads=21, value=64),
)
FIRST_CALLS = (
    Shape(batch=2, steps=512, heads=10, key=32),
    Shape(batch=2, steps=512, heads=5, key=128, value=8),
    Shape(batch=1, steps=256, heads=3, value=128),
    Shape(batch=2, steps=512, heads=7, key=48, value=32),
)


def main(arguments: list[str]) -> int:
    if reason := why_unavailable():
        print(f"error: cannot measure: {reason}", file=sys.stderr)
        return 1
    import triton

    versions = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    print(*(f"{name} {value}" for name, value in versions.items()), sep=", ")
    records: dict[str, object] = {"versions": versions}
    for shape in TIMED:
        figures = measure(shape)
        records[str(shape)] = asdict(figures)
        print(
            f"{shape}: forward {figures.forward_ms:.2f} ms, forward + backward {figures.both_ms:.2f} ms "
            f"[{figures.both_min:.2f}, {figures.both_max:.2f}], peak {figures.peak_mib:.0f} MiB, "
            f"first call {figures.first_s:.1f} s",
            flush=True,
        )
    for shape in FIRST_CALLS:
        seconds = first_call(*draw(shape))
        records[f"first call {shape}"] = seconds
        print(f"{shape}: first call {seconds:.1f} s", flush=True)
    if arguments:
        Path(arguments[0]).write_text(json.dumps(records, indent=1) + "\n")
    return 0


def draw(shape: Shape) -> tuple[list[Tensor], Tensor]:
    """Return bfloat16 inputs (one query and key head, float32 forget gates) and the gradient of y."""
    g = torch.Generator(device="cuda").manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, device="cuda")

    low, sequence = torch.bfloat16, (shape.batch, shape.steps)
    q, k = (torch.nn.functional.normalize(normal(*sequence, 1, shape.key), dim=-1).to(low) for _ in range(2))
    v, dy = (normal(*sequence, shape.heads, shape.value).to(low) for _ in range(2))
    noise = 0.05 * normal(shape.heads, shape.value, shape.value)
    weight = (torch.eye(shape.value, device="cuda") + noise).to(low)
    forget = torch.sigmoid(normal(*sequence, shape.heads) + 1)
    return [x.requires_grad_() for x in (q, k, v, weight, forget)], dy


def measure(shape: Shape) -> Figures:
    from triton.testing import do_bench

    inputs, dy = draw(shape)
    first = first_call(inputs, dy)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward_and_backward(inputs, dy)
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    forward = do_bench(lambda: forward_only(inputs), warmup=20, rep=100, return_mode="all")
    both = do_bench(lambda: forward_and_backward(inputs, dy), warmup=20, rep=200, return_mode="all")
    torch.cuda.empty_cache()
    return Figures(
        forward_ms=median(forward),
        both_ms=median(both),
        both_min=min(both),
        both_max=max(both),
        runs=len(both),
        peak_mib=peak,
        first_s=first,
    )


def first_call(inputs: list[Tensor], dy: Tensor) -> float:
    """Return the seconds of one forward and backward."""
    start = time.perf_counter()
    forward_and_backward(inputs, dy)
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def forward_only(inputs: list[Tensor]) -> None:
    m2rnn(*inputs, gradient_clip=1.0, backend="triton")


def forward_and_backward(inputs: list[Tensor], dy: Tensor) -> None:
    y, _ = m2rnn(*inputs, gradient_clip=1.0, backend="triton")
    torch.autograd.grad(y, inputs, dy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
