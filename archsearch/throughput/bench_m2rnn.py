"""Measure the M²RNN kernels and the whole layer on this GPU; nothing is reported unless they are right in this run."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.kernels.dispatch import REFERENCE, calls, why_no_ampere
from archsearch.kernels.m2rnn.op import m2rnn
from archsearch.throughput.layers import build, training_pass
from archsearch.throughput.limits import limits_of_this_gpu, m2rnn_work
from archsearch.throughput.timing import kernel_time, launch_time, peak_extra_memory, time_side_by_side


@dataclass(frozen=True, kw_only=True)
class Shape:
    """B sequences of T steps, N heads with states of K x V; q and k have one head, as published."""

    batch: int
    steps: int
    heads: int
    key: int = 64
    value: int = 16

    def __str__(self) -> str:
        return f"B {self.batch}, T {self.steps}, N {self.heads}, K {self.key}, V {self.value}"


TIMED = (
    Shape(batch=8, steps=4096, heads=84),
    Shape(batch=1, steps=16384, heads=84),
    Shape(batch=4, steps=4096, heads=132),
    Shape(batch=8, steps=4096, heads=21, value=64),
)
NEW = (  # head shapes that nothing before in the run has compiled
    Shape(batch=2, steps=512, heads=10, key=32),
    Shape(batch=2, steps=512, heads=5, key=128, value=8),
    Shape(batch=2, steps=512, heads=7, key=48, value=64),
)
LAYERS = ((8, 4096), (1, 16384))  # B, T
REFERENCE_STEPS = 64  # the loop takes time in proportion; its figure is scaled from this many
LIMIT = 1e-2  # ||a - b|| / ||b|| against float64, of bfloat16
KINDS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "xmma"),
    "recurrence": ("forward_kernel", "backward_kernel", "sum_output", "sum_gradients", "chunk", "recompute_w_u",
                   "prepare_wy", "solve", "l2norm", "cumsum"),
}  # fmt: skip
AROUND = {"convolution": ("short_conv",), "gate and norm": ("gated_rms_norm",)}


class WrongResultError(RuntimeError):
    """The kernels' results are not those of the float64 reference."""


def measure_all(base: Architecture, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure every shape and the layers of `base` (letters M and R); `report` gets each line as it is known.

    Raises ValueError where the kernels cannot run here, WrongResultError where they are wrong.
    """
    if reason := why_no_ampere():
        raise ValueError(f"cannot measure: {reason}")
    versions = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "python": platform.python_version(),
    }
    report(", ".join(f"{name} {value}" for name, value in versions.items()))
    records: dict[str, Any] = {"versions": versions, "errors": {}, "first calls": {}, "kernels": {}, "layers": {}}
    for shape in (*TIMED, *NEW):
        seconds = _first_call(shape)
        error = check(shape)
        records["errors"][str(shape)] = error
        records["first calls"][str(shape)] = seconds
        report(f"{shape}: first call {seconds:.1f} s, error {error:.1e}")
    for shape in TIMED:
        records["kernels"][str(shape)] = figures = _kernel_figures(shape)
        report(f"{shape}: {_describe(figures)}")
    for batch, steps in LAYERS:
        records["layers"][f"B {batch}, T {steps}"] = figures = _layer_figures(base, batch, steps)
        report(f"layers at B {batch}, T {steps}: {_describe_layers(figures)}")
    return records


def check(shape: Shape) -> float:
    """Return the largest relative error of y and all gradients on a short batch. Raises WrongResultError."""
    short = Shape(batch=2, steps=300, heads=shape.heads, key=shape.key, value=shape.value)
    inputs, dy = draw(short)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    actual, expected = _results(inputs, dy, "triton"), _results(exact, dy.double(), REFERENCE)
    error: float = max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(actual, expected, strict=True))
    if not error <= LIMIT:
        raise WrongResultError(
            f"{shape}: error {error:.1e} against float64, at most {LIMIT} is right; nothing is timed"
        )
    return error


def draw(shape: Shape) -> tuple[list[Tensor], Tensor]:
    """Return bfloat16 inputs (float32 forget gates) and the gradient of y; q and k have unit norm, W is near I."""
    g = torch.Generator(device="cuda").manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, device="cuda")

    low, sequence = torch.bfloat16, (shape.batch, shape.steps)
    q, k = (torch.nn.functional.normalize(normal(*sequence, 1, shape.key), dim=-1).to(low) for _ in range(2))
    v, dy = (normal(*sequence, shape.heads, shape.value).to(low) for _ in range(2))
    weight = (torch.eye(shape.value, device="cuda").expand(shape.heads, -1, -1) * 0.95).to(low)
    forget = 0.05 + 0.95 * torch.rand(*sequence, shape.heads, generator=g, device="cuda")
    return [x.requires_grad_() for x in (q, k, v, weight, forget)], dy


def _results(inputs: list[Tensor], dy: Tensor, backend: str) -> list[Tensor]:
    y, state = m2rnn(*inputs, gradient_clip=1.0, backend=backend)
    return [y, state, *torch.autograd.grad(y, inputs, dy)]


def _first_call(shape: Shape) -> float:
    """Return the seconds of a first forward and backward where nothing is cached on disk."""
    inputs, dy = draw(Shape(batch=1, steps=64, heads=shape.heads, key=shape.key, value=shape.value))
    torch.cuda.synchronize()
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            start = time.perf_counter()
            _results(inputs, dy, "triton")
            torch.cuda.synchronize()
            return time.perf_counter() - start
        finally:
            del os.environ["TRITON_CACHE_DIR"]
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def _kernel_figures(shape: Shape) -> dict[str, Any]:
    inputs, dy = draw(shape)
    short, short_dy = draw(Shape(**{**asdict(shape), "steps": REFERENCE_STEPS}))

    def forward() -> None:
        with torch.no_grad():
            m2rnn(*inputs, gradient_clip=1.0, backend="triton")

    def both() -> None:
        _results(inputs, dy, "triton")

    def reference() -> None:
        _results(short, short_dy, REFERENCE)

    peak = peak_extra_memory(both)
    times = time_side_by_side({"forward": forward, "forward + backward": both})
    slow = time_side_by_side({"reference": reference}, rounds=3)["reference"]
    limits = limits_of_this_gpu()
    sizes = shape.batch, shape.steps, shape.heads, shape.key, shape.value
    return {
        "ms": {name: asdict(value) for name, value in times.items()},
        "share of limits": {
            name: m2rnn_work(*sizes, backward=name != "forward").shares(limits, value.median / 1000)
            for name, value in times.items()
        },
        "peak MiB": peak / 2**20,
        f"reference ms, scaled from {REFERENCE_STEPS} steps": slow.median * shape.steps / REFERENCE_STEPS,
    }


def _layer_figures(base: Architecture, batch: int, steps: int) -> dict[str, Any]:
    """Time the mixers of M and R, which differ by a few per cent in parameters, in interleaved rounds."""
    passes, parameters, backends = {}, {}, {}
    for letter in "MR":
        bound = base.mixers[letter]
        mixer = build(bound.type, bound.options, base.hidden_size)
        x = torch.randn(batch, steps, base.hidden_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        passes[bound.type] = training_pass(mixer, x, torch.randn_like(x))
        parameters[bound.type] = bound.options.num_parameters(base.hidden_size)
        before = calls.copy()
        passes[bound.type]()
        op = registry.get(bound.type).op
        backends[bound.type] = next(backend for (of, backend) in calls - before if of == op)
    times = time_side_by_side(passes)
    first, second = (time.median for time in times.values())
    return {
        "ms": {name: asdict(value) for name, value in times.items()},
        "ratio": first / second,
        "parameters": parameters,
        "backends": backends,
        "peak MiB": {name: peak_extra_memory(call) / 2**20 for name, call in passes.items()},
        "launch ms": {name: launch_time(call) for name, call in passes.items()},
        "kernel ms": {name: kernel_time(call, {**AROUND, **KINDS}) for name, call in passes.items()},
    }


def _describe(figures: dict[str, Any]) -> str:
    text = [
        f"{name} {value['median']:.2f} ms [{value['low']:.2f}, {value['high']:.2f}]"
        for name, value in figures["ms"].items()
    ]
    shares = figures["share of limits"]["forward + backward"]
    text += [f"{share:.0%} of {name}" for name, share in shares.items() if share is not None]
    slow = next(value for name, value in figures.items() if name.startswith("reference"))
    return ", ".join([*text, f"peak {figures['peak MiB']:.0f} MiB", f"PyTorch about {slow:,.0f} ms"])


def _describe_layers(figures: dict[str, Any]) -> str:
    text = []
    for name, value in figures["ms"].items():
        parts = ", ".join(f"{kind} {ms:.2f}" for kind, ms in figures["kernel ms"][name].items())
        text.append(
            f"{name} ({figures['parameters'][name]:,} parameters, {figures['backends'][name]}) {value['median']:.2f} ms"
            f" [{value['low']:.2f}, {value['high']:.2f}] (launches {figures['launch ms'][name]:.2f}): {parts}"
        )
    return f"ratio {figures['ratio']:.2f}; " + "; ".join(text)
