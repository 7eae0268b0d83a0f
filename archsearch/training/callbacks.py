"""What happens around the steps: checkpoints to resume from, tokens per second, predictions, Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, RichProgressBar
from lightning.pytorch.strategies import Strategy

from archsearch.data.stream import IGNORED
from archsearch.training.ranks import any_rank

LAST = "last.ckpt"
WINDOW = 50  # batches that tokens/s is a mean of
SHOWN_EVERY = 1.0  # seconds


class SaveLast(Checkpoint):
    """Keep one checkpoint to resume from, `last.ckpt`; written to the side and renamed, so it is always whole."""

    def __init__(self, dirpath: str | None = None, every_seconds: float = 60.0) -> None:
        """Describe where and how often.

        Args:
            dirpath: Folder of last.ckpt. Default: `checkpoints` in the logger's folder.
            every_seconds: Time between two of them; one more is written at the end.
        """
        self.dirpath = dirpath
        self.every_seconds = every_seconds
        self._saved_step = -1
        self._saved_at = 0.0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = any_rank(time.monotonic() - self._saved_at >= self.every_seconds)
        # a checkpoint holds no gradients: between two accumulated batches it would lose those of the first
        if due and not trainer.fit_loop._should_accumulate():
            self._save(trainer)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if trainer.global_step != self._saved_step:
            self._save(trainer)

    def path(self, trainer: lightning.Trainer) -> Path:
        """Return where the checkpoint is or will be."""
        if self.dirpath is not None:
            return Path(self.dirpath, LAST)
        return Path(trainer.log_dir or trainer.default_root_dir, "checkpoints", LAST)

    def _save(self, trainer: lightning.Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = Path(trainer.strategy.broadcast(self.path(trainer)))
        beside = path.with_name(f".{LAST}.writing")
        try:
            with _written_directly(trainer.strategy):
                trainer.save_checkpoint(beside)
        except Exception:
            beside.unlink(missing_ok=True)  # half a file on a full disk keeps it full
            raise
        if trainer.is_global_zero:
            os.replace(beside, path)
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step


class DirectCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to its file, not first to memory and to $TMPDIR, neither of which may have room for it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the file, whose name an OSError has."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            # PyTorch closes its archive after a failed write, and then complains of that
            reason = error if isinstance(error, OSError) else error.__context__
            if not isinstance(reason, OSError):
                raise
            raise OSError(reason.errno, reason.strerror, str(path)) from None


@contextmanager
def _written_directly(strategy: Strategy) -> Iterator[None]:
    """Let a strategy that writes as Lightning does, and not as a plugin says, write by DirectCheckpointIO."""
    usual = strategy.checkpoint_io
    if type(usual) is TorchCheckpointIO:
        strategy.checkpoint_io = DirectCheckpointIO()
    try:
        yield
    finally:
        strategy.checkpoint_io = usual


class TokensPerSecond(Callback):
    """Log `tokens/s` over the last batches, the time of validation and checkpoints left out."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._restart(pl_module)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._restart(pl_module)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._marks.append((time.perf_counter(), pl_module.tokens_seen))
        if len(self._marks) > 1:
            pl_module.log("tokens/s", torch.tensor(self.rate()), prog_bar=True)  # on the CPU: a GPU is not waited for

    def rate(self) -> float:
        """Return the tokens of all devices together per second; accumulated batches count like any other."""
        (start, before), (stop, after) = self._marks[0], self._marks[-1]
        return (after - before) / max(stop - start, 1e-9)

    def _restart(self, pl_module: Any) -> None:
        self._marks.clear()
        self._marks.append((time.perf_counter(), pl_module.tokens_seen))


class ProgressBar(RichProgressBar):
    """Lightning's bar without the epochs that an endless stream of batches does not have.

    In training it asks for the loss once in `SHOWN_EVERY` seconds: a GPU that is asked has to finish all its work
    first, and asked at every step, as Lightning does, it stands idle until it is given the next one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shown: dict[str, Any] = {}
        self._shown_at = -math.inf

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._shown_at = -math.inf
        super().on_train_epoch_end(trainer, pl_module)

    def get_metrics(self, trainer: lightning.Trainer, pl_module: Any) -> dict[str, Any]:
        now = time.monotonic()
        if not trainer.training or now - self._shown_at >= SHOWN_EVERY:
            metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
            self._shown = {name: value for name, value in metrics.items() if name != "v_num"}
            self._shown_at = now
        return self._shown


class PredictionWriter(Callback):
    """Write what `predict` returns to `predictions.pt`: a dict of tensors per batch (rank r > 0: predictions-r.pt)."""

    def __init__(self, path: str | None = None) -> None:
        """Describe where.

        Args:
            path: The file. Default: predictions.pt in the logger's folder.
        """
        self.path = path
        self._batches: list[dict[str, torch.Tensor]] = []

    def on_predict_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if (outputs["targets"] != IGNORED).any():  # not so in a batch that only keeps another rank company
            self._batches.append({name: values.cpu() for name, values in outputs.items()})

    def on_predict_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        path = Path(self.path or Path(trainer.log_dir or trainer.default_root_dir, "predictions.pt"))
        if trainer.global_rank:
            path = path.with_stem(f"{path.stem}-{trainer.global_rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self._batches, path)
        print(f"predictions: {path}")


class StopOnInterrupt(Callback):
    """Let Ctrl-C finish the step in hand and save; a second one stops at once."""

    def __init__(self) -> None:
        self.interrupted = False
        self._previous: Callable[..., Any] | int | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        def stop(*_: object) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        self._previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, stop)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # the signal may reach one rank alone, or the others a step later
        if any_rank(self.interrupted):
            self.interrupted = trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def on_exception(self, trainer: lightning.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.interrupted |= isinstance(exception, KeyboardInterrupt)
