"""Train and evaluate one architecture on one task, quietly: what a trial of a study does."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
from lightning.pytorch.callbacks import ModelCheckpoint

from archsearch import data as data_modules
from archsearch.architecture import Architecture
from archsearch.data.base import TokenData
from archsearch.training.module import LanguageModel

CHECKPOINT_SECONDS = 30.0


class NotFiniteError(RuntimeError):
    """The loss became infinite or NaN."""


def train_and_evaluate(
    architecture: Architecture,
    data_class: str,
    data_args: Mapping[str, Any],
    *,
    max_tokens: int,
    optimizer: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    eval_lengths: list[int] | None = None,
    seed: int = 0,
    precision: str = "32-true",
    checkpoint_dir: Path | None = None,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Train from scratch for `max_tokens` and return the validation figures.

    Keys: `loss`, `accuracy`, `perplexity` at the training length and `loss/256` and so on at every evaluation length,
    `train_loss`, `tokens`, `seconds`. Goes on from `checkpoint_dir/last.ckpt` where there is one. The architecture's
    vocabulary is replaced by the data's. Raises NotFiniteError where training diverges.
    """
    _quiet()
    lightning.seed_everything(seed, verbose=False)
    data = build_data(data_class, {**data_args, "eval_lengths": eval_lengths, "seed": seed})
    values = {**architecture.to_dict(), "vocab_size": data.vocab_size}
    steps = steps_for(data, max_tokens)
    model = LanguageModel(values, optimizer=dict(optimizer or {}), schedule=dict(schedule or {}))  # type: ignore[arg-type]
    callbacks: list[lightning.Callback] = [_Progress(progress, steps)]
    if checkpoint_dir is not None:
        callbacks.append(_LastCheckpoint(checkpoint_dir))
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        precision=precision,  # type: ignore[arg-type]
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=checkpoint_dir is not None,
        callbacks=callbacks,
        limit_val_batches=0,
        default_root_dir=checkpoint_dir,
    )
    started = time.monotonic()
    last = None if checkpoint_dir is None else checkpoint_dir / "last.ckpt"
    resumed = str(last) if last and last.exists() else None
    trainer.fit(model, datamodule=data, ckpt_path=resumed, weights_only=True if resumed else None)
    trainer.limit_val_batches = 1.0
    results = trainer.validate(model, datamodule=data, verbose=False)
    figures = {key.removeprefix("val/"): float(value) for result in results for key, value in result.items()}
    train_loss = next(callback.loss for callback in callbacks if isinstance(callback, _Progress))
    return {
        **figures,
        "train_loss": train_loss,
        "tokens": float(model.tokens_seen),
        "seconds": time.monotonic() - started,
    }


def build_data(data_class: str, arguments: Mapping[str, Any]) -> TokenData:
    """Return the data module of that name; arguments that are None keep their defaults."""
    given = {key: value for key, value in arguments.items() if value is not None}
    module: TokenData = getattr(data_modules, data_class)(**given)
    return module


def steps_for(data: TokenData, max_tokens: int) -> int:
    """Return the optimizer steps that train on `max_tokens` tokens at the data's full length, at least one."""
    return max(1, round(max_tokens / (data.batch_size * data.length)))


class _Progress(lightning.Callback):
    """Report step, loss and speed about once a second, and stop where the loss is not finite."""

    def __init__(self, report: Callable[[dict[str, float]], None] | None, steps: int) -> None:
        self.report, self.steps = report, steps
        self.loss = math.nan
        self._reported, self._tokens = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tokens += batch["tokens"].numel()
        now = time.monotonic()
        last = trainer.global_step >= self.steps
        if now - self._reported < 1.0 and not last:
            return
        self.loss = float(outputs["loss"])
        if not math.isfinite(self.loss):
            raise NotFiniteError(f"loss {self.loss} at step {trainer.global_step}")
        if self.report:
            speed = self._tokens / max(1e-9, now - self._reported)
            step = float(trainer.global_step)
            self.report({"step": step, "steps": self.steps, "loss": self.loss, "tokens_per_second": speed})
        self._reported, self._tokens = now, 0


class _LastCheckpoint(ModelCheckpoint):
    """Keep `last.ckpt`, written every half minute and at the end, all or nothing."""

    def __init__(self, folder: Path) -> None:
        from datetime import timedelta

        super().__init__(
            dirpath=folder,
            filename="last",
            train_time_interval=timedelta(seconds=CHECKPOINT_SECONDS),
            save_top_k=1,
            enable_version_counter=False,
        )


def _quiet() -> None:
    """Keep Lightning's banners and hints out of a trial's log; errors stay."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*")
