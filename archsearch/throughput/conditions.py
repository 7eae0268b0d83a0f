"""Under which conditions something is timed, and on which device."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass

import torch

from archsearch.config import ConfigError
from archsearch.throughput import cost_table
from archsearch.throughput.cost_table import BLOCKS, MODES

PRECISIONS = dict(zip(cost_table.PRECISIONS, (None, torch.bfloat16, torch.float16), strict=True))


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is timed: mode, batch, length, precision and for how long at most (seconds, all architectures together).

    `train` is a whole training step, `prefill` a forward pass without gradients, `decode` one generated token per
    sequence after a context of `length` tokens. `blocks` is how the blocks of a training step run: as they are,
    translated by torch.compile, or replayed as CUDA graphs.
    """

    batch_size: int = 8
    length: int = 512
    precision: str = "fp32"
    time_limit: float = 90.0
    confidence: float = 0.95
    device: str | None = None
    mode: str = "train"
    blocks: str = "eager"

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "time_limit"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be positive and finite; got {getattr(self, name)}")
        if not 0.5 < self.confidence < 1:
            raise ConfigError(f"confidence must lie between 0.5 and 1; got {self.confidence}")
        for name, known in (("precision", tuple(PRECISIONS)), ("mode", MODES), ("blocks", BLOCKS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}")

        if self.blocks != "eager" and self.mode != "train":
            raise ConfigError(f"blocks must be eager where mode is {self.mode}; got {self.blocks!r}")

    @property
    def tokens_per_step(self) -> int:
        """How many tokens one step reads, or in decoding makes."""
        return self.batch_size if self.mode == "decode" else self.batch_size * self.length

    def resolve_device(self) -> torch.device:
        """Return the device asked for, or the GPU where there is one. Raises ConfigError."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        known = ["cpu", *(["cuda"] if gpus else []), *gpus]
        if name not in known:
            raise ConfigError(f"device must be one of this machine's, {', '.join(known)}; got {name!r}")
        return torch.device(name)

    def describe(self) -> str:
        """Return what is timed, in words."""
        size, precision = f"{self.batch_size} x {self.length}", self.precision
        if self.mode == "decode":
            return f"generation steps of {self.batch_size} sequences after {self.length} tokens in {precision}"
        way = "" if self.blocks == "eager" else f", blocks by {self.blocks}"
        return f"{'training steps' if self.mode == 'train' else 'forward passes'} of {size} tokens in {precision}{way}"


def describe_device(device: torch.device) -> str:
    """Return the device in words, so that no figure stands without the machine it came from."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
