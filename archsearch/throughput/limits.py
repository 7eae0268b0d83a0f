"""What an M²RNN recurrence costs at least on a GPU: arithmetic, memory traffic and special functions.

Per step, head and state of K x V, in multiply-adds (2 operations each):

- forward: `H W` K V V, `k v^T` K V, `H^T q` K V;
- backward: the forward once more to recompute the states (without the output), Z again in the reverse sweep
  (K V V + K V), `D W^T` and `H^T D` 2 K V V, and the outer products and sums for q, k, v: `q u^T`, `D v`, `D^T k`,
  `H u` 4 K V.

Special functions: one tanh per element of the state forward, two backward. Memory, in the inputs' width (2 bytes):
q, k, v and y once forward with float32 gates; backward q, k, v, dy and the gates read, their gradients written.
Checkpoints, which an implementation chooses, do not count.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import torch

TENSOR_FLOPS = {(9, 0): 4096, (8, 0): 2048}  # bf16 operations per multiprocessor and cycle, dense
SPECIAL_PER_CYCLE = 16  # per multiprocessor
BYTES_PER_SECOND = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a card does per second at its highest clock; None where this is not known."""

    flops: float | None
    bytes: float | None
    specials: float | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a computation needs at least."""

    flops: float
    bytes: float
    specials: float

    def shares(self, limits: Limits, seconds: float) -> dict[str, float | None]:
        """Return which share of each limit a run of `seconds` achieves."""
        return {
            "arithmetic": self.flops / limits.flops / seconds if limits.flops else None,
            "memory": self.bytes / limits.bytes / seconds if limits.bytes else None,
            "special functions": self.specials / limits.specials / seconds if limits.specials else None,
        }


def limits_of_this_gpu() -> Limits:
    """Return the limits of the current GPU, from its multiprocessors and its highest clock."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = _highest_clock()
    cycles = properties.multi_processor_count * clock if clock else None
    per_cycle = TENSOR_FLOPS.get((properties.major, properties.minor))
    return Limits(
        flops=per_cycle * cycles if per_cycle and cycles else None,
        bytes=next((rate for name, rate in BYTES_PER_SECOND.items() if name in properties.name), None),
        specials=SPECIAL_PER_CYCLE * cycles if cycles else None,
    )


def m2rnn_work(batch: int, steps: int, heads: int, key: int, value: int, *, backward: bool) -> Work:
    """Return the least work of the published form (one q and k head); `backward` counts forward and backward."""
    states = batch * steps * heads
    square, area = key * value * value, key * value
    multiply_adds, specials = square + 2 * area, area
    rows = batch * steps
    inputs = rows * 2 * (2 * key + heads * value) + states * 4
    moved = inputs + states * value * 2
    if backward:
        multiply_adds += (square + area) + (square + area) + 2 * square + 4 * area
        specials += 2 * area
        moved += 2 * inputs + states * value * 2
    return Work(flops=2.0 * states * multiply_adds, bytes=float(moved), specials=float(states * specials))


def _highest_clock() -> float | None:
    """Return the highest clock of the multiprocessors in Hz, None where the driver's tool does not tell."""
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * 1e6
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None
