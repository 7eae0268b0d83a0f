"""Compile the kernels of a model before its first step, those of its ops side by side.

Kernels are compiled when they are first launched, one after the other as a step comes to them. A compiler leaves
Python's lock most of the time, so here a thread for each op runs small models of one layer: what takes the longest op's
time then took the sum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.model.language_model import HybridLM
from archsearch.training.step import training_losses

STEPS = 256
FILL = 0.01  # every weight: to draw them would change what the run itself draws

Context = Callable[[], contextlib.AbstractContextManager[object]]


def compile_kernels(architecture: Architecture, device: torch.device, autocast: Context, packed: bool) -> None:
    """Run each distinct layer of an architecture forward and backward on `device` (a GPU).

    `autocast` makes the context that a step runs in. Errors are left to the run itself, which will meet them again.
    """
    lanes: dict[str, list[str]] = {}
    for letter in dict.fromkeys(architecture.pattern):
        backends = getattr(registry.get(architecture.mixers[letter].type).module, "backends", None)
        lanes.setdefault(backends.op if backends else letter, []).append(letter)  # tuners are not safe among threads

    def run(letters: list[str]) -> None:
        with torch.cuda.device(device), contextlib.suppress(Exception):
            for letter in letters:
                _run_once(_build(architecture.with_pattern(letter), device), autocast, packed)

    with ThreadPoolExecutor(max_workers=len(lanes)) as threads:
        list(threads.map(run, lanes.values()))


def _build(architecture: Architecture, device: torch.device) -> HybridLM:
    with torch.device("meta"):
        model = HybridLM(architecture)
    model.to_empty(device=device)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(FILL)
    return model


def _run_once(model: nn.Module, autocast: Context, packed: bool) -> None:
    assert isinstance(model, HybridLM)
    tokens = torch.zeros(2, STEPS, dtype=torch.int64, device=model.embedding.weight.device)
    batch = {"tokens": tokens, "targets": tokens}
    if packed:
        batch["cu_seqlens"] = torch.tensor([0, 1, STEPS, 2 * STEPS])
    with autocast():
        loss, _ = training_losses(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
