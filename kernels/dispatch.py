"""Choose the backend of an op, and keep count of the choices so that a test can prove which path ran."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

REFERENCE = "reference"
Reason = TypeVar("Reason", bound=Callable[..., str | None])
Function = TypeVar("Function", bound=Callable[..., object])

calls: Counter[tuple[str, str]] = Counter()
"""How often each (op, backend) has run in this process, outside of graphs of torch.compile."""


@dataclass(frozen=True)
class Backends:
    """The backends of one op: plain PyTorch everywhere, and faster ones where the machine has what they need.

    `fast` maps a name to a function that returns why the backend cannot run on this machine, or None; fastest first.
    """

    op: str
    fast: Mapping[str, Callable[[], str | None]] = field(default_factory=dict)

    def missing(self) -> dict[str, str | None]:
        """Return each backend with the reason why it cannot run here, None where it can."""
        return {**{name: reason() for name, reason in self.fast.items()}, REFERENCE: None}

    def choose(self, requested: str, tensor: torch.Tensor, refused: Mapping[str, str] | None = None) -> str:
        """Return the backend to run; `refused` holds those that these very inputs rule out, with the reason.

        `auto` takes the fastest that can run. Raises ValueError where a backend asked for by name cannot.
        """
        refused = refused or {}
        if requested != "auto" and requested not in self.missing():
            raise ValueError(f"{self.op}: unknown backend {requested!r}; known: auto, {', '.join(self.missing())}")
        for name, missing in self.fast.items():
            if requested not in ("auto", name):
                continue
            reason = refused.get(name) or missing() or (None if tensor.is_cuda else "its inputs are not on a GPU")
            if reason is None:
                return self.count(name)
            if requested == name:
                raise ValueError(f"{self.op}: backend {name!r} cannot be used: {reason}")
        return self.count(REFERENCE)

    def count(self, name: str) -> str:
        if not torch.compiler.is_compiling():  # a graph that depends on the count would be compiled anew at every call
            calls[self.op, name] += 1
        return name


def full_precision(tensor: torch.Tensor) -> torch.autocast:
    """Return a context in which autocast does not round the matrix products of a recurrence to its low precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def constant(reason: Reason) -> Reason:
    """Let torch.compile keep the answer: to look for a package breaks its graph in some releases.

    The mark is all that `torch.compiler.assume_constant_result` sets, but that imports Dynamo, and Triton with it.
    """
    reason._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return reason


def opaque(function: Function) -> Function:
    """Let torch.compile break its graph around a function that reads numbers off the device, once and whole.

    Traced into, it would break at every such number, and be compiled again for other numbers. The mark is all that
    `torch.compiler.disable` sets, but that imports Dynamo.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


@constant
def why_no_ampere() -> str | None:
    """Return why Triton kernels for NVIDIA GPUs of compute capability 8.0 and newer cannot run here, or None."""
    return why_no_triton() or why_old_gpu()


@constant
def why_old_gpu() -> str | None:
    """Return why kernels for NVIDIA GPUs of compute capability 8.0 and newer cannot run here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 0):
        return "its kernels need an NVIDIA GPU of compute capability 8.0 or newer"
    return None


@constant
def why_no_triton() -> str | None:
    """Return why Triton kernels cannot run on this machine, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (it has no build for this platform, or: pip install 'archsearch[gpu]')"
    return None if torch.cuda.is_available() else "no CUDA GPU"
