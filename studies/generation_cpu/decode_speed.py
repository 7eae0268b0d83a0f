"""Time decoding by pattern: python studies/generation_cpu/decode_speed.py A4 R4 ... (fresh weights, one thread)."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time

import torch

from archsearch.architecture import small
from archsearch.model.generation import state_bytes, stream
from archsearch.model.language_model import HybridLM

ROUNDS, STEPS = 3, 40
CASES = ((1, 1), (1, 4000), (8, 1))  # sequences, tokens of the prompt


def main(patterns: list[str]) -> None:
    """Print tokens per second of processor time, the median of interleaved rounds, and the states' bytes."""
    torch.set_num_threads(1)
    models = {p: HybridLM(dataclasses.replace(small().with_pattern(p), vocab_size=257)) for p in patterns}
    for rows, length in CASES:
        print(f"{rows} x {length} tokens before")
        rates: dict[str, list[float]] = {pattern: [] for pattern in patterns}
        sizes: dict[str, int] = {}
        for _ in range(ROUNDS):
            for pattern, model in models.items():
                steps = stream(model, [[i % 257 for i in range(length)]] * rows, STEPS + 1)
                sizes[pattern] = state_bytes(next(steps).states)  # the prompt and the first token
                started = time.process_time()  # other programs on the machine do not count
                assert sum(1 for _ in steps) == STEPS
                rates[pattern].append(rows * STEPS / (time.process_time() - started))
        for pattern in patterns:
            print(f"  {pattern:<8}{statistics.median(rates[pattern]):>8,.0f} tokens/s{sizes[pattern]:>12,} bytes")


main(sys.argv[1:])
