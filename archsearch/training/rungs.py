"""Evaluate in the midst of a training that does not notice it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from archsearch.data.base import TokenData
from archsearch.data.evaluation import Evaluation
from archsearch.training.metrics import LanguageMetrics
from archsearch.training.module import LanguageModel, named
from archsearch.training.step import forward


@dataclass(frozen=True, kw_only=True)
class Rungs:
    """After which optimizer steps to evaluate, which metrics are wanted, and who is told them with the step."""

    steps: Collection[int]
    metrics: Collection[str]
    report: Callable[[int, dict[str, float]], None]


class EvaluateAtRungs(lightning.Callback):
    """Evaluate a model after some of its optimizer steps; the training is the same, bit for bit."""

    def __init__(self, rungs: Rungs, data: TokenData) -> None:
        self._rungs, self._data = rungs, data

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in self._rungs.steps:
            self._rungs.report(trainer.global_step, evaluate(pl_module, self._data, self._rungs.metrics))


def evaluate(module: LanguageModel, data: TokenData, wanted: Collection[str]) -> dict[str, float]:
    """Return the `wanted` metrics as `trainer.validate` finds them; sets that none of them is of are left out.

    Random generators and the mode of every part of the model are afterwards as they were.
    """
    modes = [(part, part.training) for part in module.modules()]
    found: dict[str, float] = {}
    with isolate_rng(), torch.no_grad():  # no inference mode: what a mixer caches in it could not be trained with
        module.eval()
        for i, (evaluation, loader) in enumerate(zip(data.evaluations(), data.val_dataloader(), strict=True)):
            if _holds_any(evaluation, wanted):
                metrics = LanguageMetrics(evaluation.metrics, evaluation.groups).to(module.device)
                for batch in loader:
                    _update(metrics, module, batch, i)
                found |= {name: float(value) for name, value, _ in named(evaluation, metrics.compute())}
    for part, training in modes:
        part.training = training
    return {name: found[name] for name in wanted if name in found}


def _update(metrics: LanguageMetrics, module: LanguageModel, batch: Any, number: int) -> None:
    trainer = module.trainer
    moved = trainer.strategy.batch_to_device(batch, module.device, dataloader_idx=number)
    with trainer.precision_plugin.val_step_context():
        metrics.update(forward(module.model, moved), moved["targets"], moved.get("groups"))


def _holds_any(evaluation: Evaluation, wanted: Collection[str]) -> bool:
    """Return whether metrics of these names (METRIC/WHERE) may be of an evaluation."""
    places = [name.partition("/")[2] for name in wanted]
    named_so = any(place == evaluation.name or place.startswith(f"{evaluation.name}/") for place in places)
    return named_so or (evaluation.standard and evaluation.part in places)
