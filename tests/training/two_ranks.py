"""Training runs that a test compares, on one device or as one of two ranks.

`MASTER_PORT=PORT python -m tests.training.two_ranks FOLDER` is both ranks: they do all `runs` and leave in FOLDER what
came out.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor

from archsearch.data import StateTracking
from archsearch.training.callbacks import LAST, SaveLast, StopOnInterrupt
from archsearch.training.module import LanguageModel
from archsearch.training.ranks import leave
from archsearch.training.strategy import NAME

STRATEGIES = ("ddp", NAME)
STEPS, HALF = 4, 2
MODEL = {  # heads and experts that two ranks cannot share evenly, a weight that is used twice
    "hidden_size": 16,
    "pattern": "MA",
    "mixers": {
        "M": {"type": "m2rnn", "num_heads": 3, "key_head_dim": 4, "value_head_dim": 4},
        "A": {"type": "attention", "num_heads": 2},
    },
    "mlp": {"type": "moe", "num_experts": 3, "experts_per_token": 2, "intermediate_size": 8, "aux_loss_weight": 0.1},
    "tie_embeddings": True,
    "init_std": 0.1,
}
DENSE = {**MODEL, "pattern": "M", "mlp": {"intermediate_size": 16}}
DATA = {
    "length": 8,
    "curriculum_start": 2,
    "curriculum_steps": 6,
    "batch_size": 4,
    "eval_lengths": [9],
    "eval_size": 10,
}
OPTIMIZER = {"learning_rate": 1e-2, "grad_clip": 0.1}


class Record(lightning.Callback):
    """Keep what each step did: the loss, the tokens so far, the rate and the norm of the clipped gradient."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.losses: list[float] = []
        self.step = 0
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(trainer.callback_metrics["train/loss"].item())
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        gradients = [whole(parameter.grad) for parameter in pl_module.parameters()]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
        largest = max(gradient.abs().max().item() for gradient in gradients)
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.steps.append({"tokens": pl_module.tokens_seen, "rate": rate, "norm": norm, "largest": largest})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.kill_at is not None and trainer.global_step == self.kill_at:
            raise KilledError


class InterruptRankOne(lightning.Callback):
    """Be the signal that reaches one rank alone."""

    def __init__(self, interrupt: StopOnInterrupt) -> None:
        self.interrupt = interrupt

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.interrupt.interrupted = trainer.global_rank == 1 and trainer.global_step == 1


class KilledError(Exception):
    """The process has ended."""


def train(
    folder: Path,
    *,
    devices: int,
    strategy: str = "auto",
    resume: Path | None = None,
    kill_at: int | None = None,
    interrupt: bool = False,
    validate: bool = False,
    max_steps: int = STEPS,
    architecture: dict[str, Any] = MODEL,
    model: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Train and evaluate with the global batch of two ranks; the checkpoint goes to `folder`."""
    quiet()
    lightning.seed_everything(1, verbose=False)
    record, stop = Record(kill_at), StopOnInterrupt()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        accumulate_grad_batches=2 // devices,
        max_steps=max_steps,
        max_epochs=-1,
        limit_val_batches=0,
        callbacks=[*([InterruptRankOne(stop), stop] if interrupt else []), record, SaveLast(str(folder), 0)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **arguments,
    )
    options = {"optimizer": OPTIMIZER, "schedule": {"tokens": 300}, **(model or {})}
    built, data = LanguageModel(architecture, vocab_size=6, **options), StateTracking(**DATA)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")  # Lightning's own
        try:
            trainer.fit(built, datamodule=data, ckpt_path=resume, weights_only=True if resume else None)
        except KilledError:
            return {}
        trainer.limit_val_batches = 1.0 if validate else 0
        metrics = list(trainer.validate(built, datamodule=data, verbose=False))
    losses = record.losses[:: 2 // devices]
    if devices == 1:
        losses = [sum(pair) / 2 for pair in zip(record.losses[::2], record.losses[1::2], strict=True)]
    return {"losses": losses, "steps": record.steps, "metrics": metrics, "global_step": trainer.global_step}


def runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments of every run of two ranks by its name; `folder` holds what one device left."""
    checkpointing = {"activation_checkpointing": True}
    clip = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}
    named: dict[str, dict[str, Any]] = {}
    for strategy in STRATEGIES:
        named[strategy] = {"strategy": strategy, "validate": True}
        named[f"{strategy} killed"] = {"strategy": strategy, "kill_at": HALF}
        named[f"{strategy} resumed"] = {"strategy": strategy, "resume": folder / f"{strategy} killed" / LAST}
        named[f"{strategy} from one device"] = {"strategy": strategy, "resume": folder / "one killed" / LAST}
        named[f"{strategy} interrupted"] = {"strategy": strategy, "interrupt": True}
        named[f"{strategy} by value"] = {"strategy": strategy, "max_steps": HALF, **clip}
        named[f"{strategy} checkpointing"] = {"strategy": strategy, "model": checkpointing}
    compiled = checkpointing | {"compile": "eager"}
    named[f"{NAME} compiled"] = {"strategy": NAME, "max_steps": 1, "architecture": DENSE, "model": compiled}
    return named


def whole(value: Tensor) -> Tensor:
    """Return a tensor that may be in shards."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def quiet() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    other = os.fork()  # not a second process from scratch: imports take longer than all the runs
    os.environ.update(LOCAL_RANK="0" if other else "1", NODE_RANK="0", MASTER_ADDR="127.0.0.1")
    try:
        results = {name: train(folder / name, devices=2, **arguments) for name, arguments in runs(folder).items()}
    except RuntimeError:
        time.sleep(1)  # a rank that crashes closes its connections first
        if other and os.WIFSIGNALED(status := os.waitpid(other, os.WNOHANG)[1]):
            os.kill(os.getpid(), os.WTERMSIG(status))  # whoever started us shall see how it really ended
        raise
    torch.save(results, folder / f"rank{torch.distributed.get_rank()}.pt")
    leave()
    return os.waitpid(other, 0)[1] if other else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
