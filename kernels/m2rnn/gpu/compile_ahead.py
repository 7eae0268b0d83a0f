"""Kernel launches as data, so that all kernels of a forward and backward pass can be compiled side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from triton.runtime import JITFunction, driver

Operand: TypeAlias = Tensor | torch.dtype
"""A tensor, or in its place the dtype of one that will be allocated later (and so be aligned to 16 bytes)."""


class Launch(NamedTuple):
    """One launch of a kernel; with a dtype among the arguments it can only be compiled."""

    kernel: Any
    grid: tuple[int, int]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.options)


def compile_side_by_side(launches: Sequence[Launch]) -> None:
    """Compile and load the kernels, a thread each: LLVM and ptxas leave Python to the others.

    A failure is left to the launch itself, which compiles again and raises.
    """
    compiled = [launch for launch in launches if isinstance(launch.kernel, JITFunction)]  # the interpreter has none
    if not compiled:
        return
    device = driver.active.get_current_device()
    with ThreadPoolExecutor(len(compiled), "m2rnn-compile") as pool:
        for launch in compiled:
            _ = launch.kernel.device_caches[device]  # made here: two threads would each make one, and lose a kernel
            pool.submit(_compile, launch, device)


def _compile(launch: Launch, device: int) -> None:
    driver.active.set_current_device(device)  # each thread has its own, at first GPU 0
    kernel = launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)
    _ = kernel.run  # builds the launcher and loads the binary
