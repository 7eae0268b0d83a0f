"""The losses of the fast path beside those of the reference: `python studies/training_h200/loss_curves.py PATTERN...`.

Both train the same weights on the same packed rows of Text in bfloat16 autocast, with every op's own choice of backend
against every op's reference. A GPU is required.
"""

import dataclasses
import statistics
import sys
from itertools import islice
from unittest import mock

import torch

from archsearch.architecture import small
from archsearch.data import Text
from archsearch.kernels.dispatch import Backends, calls
from archsearch.model.language_model import HybridLM
from archsearch.training.step import OptimizerOptions, build_optimizer, train_step

STEPS, LENGTH, ROWS = 200, 512, 4


def main(patterns: list[str]) -> None:
    for pattern in patterns:
        fast, used = losses(pattern)
        with mock.patch.object(Backends, "choose", lambda self, *_, **__: self.count("reference")):
            exact, unused = losses(pattern)
        again, _ = losses(pattern)
        assert any(name != "reference" for _, name in used), "no fast path on this machine"
        assert all(name == "reference" for _, name in unused)
        apart = [abs(a - b) for a, b in zip(fast, exact, strict=True)]
        noise = [abs(a - b) for a, b in zip(fast, again, strict=True)]
        print(f"{pattern}: loss {fast[0]:.3f} -> {statistics.mean(fast[-20:]):.4f}, reference", end=" ")
        print(f"{statistics.mean(exact[-20:]):.4f} (means of the last 20 of {STEPS} steps); apart at most", end=" ")
        print(f"{max(apart):.4f}, {statistics.mean(apart):.4f} on average; two fast runs at most {max(noise):.4f}")
        print("   ", ", ".join(sorted(f"{op} {name}" for op, name in used)), flush=True)


def losses(pattern: str) -> tuple[list[float], set[tuple[str, str]]]:
    """Return the loss of every step, and the backends that ran."""
    calls.clear()
    data = Text(length=LENGTH, batch_size=ROWS, seed=0)
    torch.manual_seed(0)
    architecture = dataclasses.replace(small().with_pattern(pattern), vocab_size=data.vocab_size)
    model = HybridLM(architecture).cuda()
    optimizer = build_optimizer(model, OptimizerOptions(learning_rate=1e-3))
    batches = islice(data.train_dataloader(), STEPS)
    found = []
    for i, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (i + 1) / 20)
        batch = batch | {name: batch[name].cuda() for name in ("tokens", "targets")}
        with torch.autocast("cuda", torch.bfloat16):  # anew for every step: it keeps the weights that it has cast
            found.append(train_step(model, optimizer, batch, 1.0))
    return [loss.item() for loss in found], set(calls)


if __name__ == "__main__":
    main(sys.argv[1:])
