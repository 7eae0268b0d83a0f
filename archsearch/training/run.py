"""Train and evaluate one architecture on one task, quietly: what a trial of a study does."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from archsearch import data as data_modules
from archsearch.architecture import Architecture
from archsearch.config import ConfigError, nearest
from archsearch.data.base import TokenData
from archsearch.training.callbacks import LAST, SaveLast
from archsearch.training.module import LanguageModel
from archsearch.training.rungs import EvaluateAtRungs, Rungs

CHECKPOINT_SECONDS = 30.0
REPORT_SECONDS = 0.5


class NotFiniteError(ArithmeticError):
    """The loss became infinite or NaN."""


def train_and_evaluate(
    architecture: Architecture,
    data_class: str,
    data_args: Mapping[str, Any],
    *,
    optimizer: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    max_steps: int | None = None,
    eval_lengths: list[int] | tuple[int, ...] | None = None,
    seed: int = 0,
    precision: str = "32-true",
    devices: int = 1,
    strategy: str = "ddp",
    checkpoint_dir: str | Path | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    rungs: Rungs | None = None,
) -> dict[str, float]:
    """Train from scratch for `max_steps`, or as many as take `max_tokens` at the full length, and return the metrics.

    Keys: `loss`, `perplexity`, `accuracy` at the training length (and `last_accuracy` where the last position is what
    counts), `loss/128` and so on at every evaluation length, `train_loss` (mean of the last batches, where any was left
    to train on), `tokens`, `seconds` (of this call) and `stopped` (1.0 where `stop` ended the training early). The
    architecture's vocabulary is replaced by the data's. Goes on, bit for bit, from `checkpoint_dir/last.ckpt` where
    there is one.

    Of several `devices`, this process has one, by the environment's LOCAL_RANK; they share the rows of each batch, so
    that their number changes nothing but rounding.

    `progress` is called about twice a second with `step`, `total_steps`, `tokens`, `loss`, `tokens_per_second` and
    `seconds`; `rungs` says when to evaluate on the way. Raises ConfigError for what cannot be built, NotFiniteError
    where training diverges.
    """
    if (max_tokens is None) == (max_steps is None):
        raise ConfigError(f"one of max_tokens and max_steps must be given; got {max_tokens} and {max_steps}")
    started = time.monotonic()
    be_quiet()
    lightning.seed_everything(seed, verbose=False)
    data = build_data(data_class, {**data_args, "eval_lengths": eval_lengths and list(eval_lengths), "seed": seed})
    data.split_rows = devices > 1
    model = LanguageModel(
        replace(architecture, vocab_size=data.vocab_size).to_dict(),
        optimizer=dict(optimizer or {}),  # type: ignore[arg-type]
        schedule=dict(schedule or {}),  # type: ignore[arg-type]
    )
    steps = max_steps or data.steps_for(max_tokens or 0)
    watch = Watch(progress, stop, steps)
    callbacks: list[lightning.Callback] = [watch]
    if rungs is not None:
        callbacks.append(EvaluateAtRungs(rungs, data))
    if checkpoint_dir is not None:
        callbacks.append(SaveLast(str(checkpoint_dir), CHECKPOINT_SECONDS))
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        precision=precision,  # type: ignore[arg-type]
        devices=devices,
        strategy=strategy if devices > 1 else "auto",
        plugins=LightningEnvironment(),  # else what srun or torchrun say of the search would be taken to be of this run
        num_sanity_val_steps=0,
        limit_val_batches=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=checkpoint_dir is not None,
        callbacks=callbacks,
        default_root_dir=checkpoint_dir,
    )
    resumed = checkpoint_dir is not None and Path(checkpoint_dir, LAST).exists()
    checkpoint = Path(checkpoint_dir, LAST) if resumed and checkpoint_dir is not None else None
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=True if resumed else None)
    trainer.limit_val_batches = 1.0
    results = trainer.validate(model, datamodule=data, verbose=False)
    return {
        **{name.removeprefix("val/"): value for result in results for name, value in result.items()},
        **watch.mean_loss(),
        "tokens": float(model.tokens_seen),
        "seconds": time.monotonic() - started,
        "stopped": float(watch.stopped),
    }


def build_data(data_class: str, arguments: Mapping[str, Any]) -> TokenData:
    """Return the data module of that name; arguments that are None keep their defaults. Raises ConfigError."""
    if data_class not in data_modules.__all__:
        known = ", ".join(data_modules.__all__)
        raise ConfigError(f"data: unknown {data_class!r}{nearest(data_class, data_modules.__all__)}; known: {known}")
    module: TokenData = getattr(data_modules, data_class)(
        **{name: value for name, value in arguments.items() if value is not None}
    )
    return module


class Watch(lightning.Callback):
    """Report progress now and then, stop when asked to, and stop where the loss is not finite."""

    def __init__(
        self, progress: Callable[[dict[str, Any]], None] | None, stop: Callable[[], bool] | None, total_steps: int
    ) -> None:
        self.progress, self.stop, self.total_steps = progress, stop, total_steps
        self.stopped = False
        self._losses: list[float] = []  # one per report: reading a loss waits for the GPU
        self._started = self._looked = time.monotonic()
        self._tokens = 0

    def mean_loss(self) -> dict[str, float]:
        """Return the mean of the last few losses looked at; nothing where a checkpoint had all steps done."""
        recent = self._losses[-5:]
        return {"train_loss": sum(recent) / len(recent)} if recent else {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._looked, self._tokens = time.monotonic(), pl_module.tokens_seen

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        last = trainer.global_step >= self.total_steps or trainer.should_stop
        if now - self._looked < REPORT_SECONDS and not last:
            return
        loss = float(outputs["loss"])
        if not math.isfinite(loss):
            raise NotFiniteError(f"the loss is {loss} at step {trainer.global_step}")
        self._losses.append(loss)
        if self.stop is not None and not last and self.stop():
            self.stopped = trainer.should_stop = True
        if self.progress is not None:
            speed = (pl_module.tokens_seen - self._tokens) / max(now - self._looked, 1e-9)
            self.progress(
                {
                    "step": trainer.global_step,
                    "total_steps": self.total_steps,
                    "tokens": pl_module.tokens_seen,
                    "loss": loss,
                    "tokens_per_second": speed,
                    "seconds": now - self._started,
                }
            )
        self._looked, self._tokens = now, pl_module.tokens_seen


def be_quiet() -> None:
    """Keep Lightning's banners and hints to itself; warnings that a user can act on and errors stay."""
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
