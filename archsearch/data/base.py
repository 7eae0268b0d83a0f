"""What the data modules share: a training stream that begins where a checkpoint ended, one loader per length."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as lightning
import torch

from archsearch.config import ConfigError
from archsearch.data.evaluation import EvalBatches, Evaluation
from archsearch.data.stream import Batch, BatchStream, FiniteBatchStream, RowsOfRank


class TokenData(lightning.LightningDataModule):
    """Batches of tokens and next targets; a subclass says what batch i is.

    The training stream has no end: `max_steps` or `max_tokens` ends the run. Batch i is a pure function of the seed and
    i, so a resumed run goes on with the very next batch, whatever the number of workers. A thread makes the next two
    batches while the device works on one; where a GPU trains they are pinned, and copied to it while it computes.
    """

    extra_metrics: tuple[str, ...] = ()
    """Metrics besides loss, perplexity and accuracy: `last_accuracy` where the last position is what counts, `exact`
    where a row's scored positions make one answer."""

    split_rows: bool = False
    """Whether ranks share the rows of each training batch, instead of each taking whole batches in turn."""

    rows_in_turn: bool = False
    """Whether the rows of the training batches, laid end to end, are the same whatever the batch size."""

    def __init__(
        self, *, length: int, batch_size: int, eval_lengths: list[int] | None, seed: int | None, num_workers: int
    ) -> None:
        super().__init__()
        self.length = length
        self.batch_size = batch_size
        more = self.default_eval_lengths() if eval_lengths is None else eval_lengths
        self.eval_lengths = list(dict.fromkeys([length, *more]))
        self.seed = 0 if seed is None else seed
        self.num_workers = num_workers
        self._restored: dict[str, int] = {"batches": 0, "batches_of_a_rank": 0}
        check_at_least(1, length=length, batch_size=batch_size, eval_lengths=min(self.eval_lengths))
        check_at_least(0, num_workers=num_workers, seed=self.seed)

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        raise NotImplementedError

    @property
    def tokens_per_batch(self) -> int:
        """The tokens of one training batch at its full length."""
        return self.batch_size * self.length

    def steps_for(self, tokens: int) -> int:
        """Return the optimizer steps, a batch each, that train on so many tokens at the full length, at least one."""
        return max(1, math.ceil(tokens / self.tokens_per_batch))

    @property
    def batches_at_once(self) -> int:
        """The training batches that all ranks together take at a time."""
        return 1 if self.split_rows or self.trainer is None else int(self.trainer.world_size)

    def default_eval_lengths(self) -> list[int]:
        """Return the evaluation lengths besides the training length where none are given."""
        return []

    def train_batches(self) -> Callable[[int], Batch]:
        """Return the function that makes training batch i; it has to be picklable, for workers."""
        raise NotImplementedError

    def evaluations(self) -> list[Evaluation]:
        """Return what is evaluated, one loader each; nothing is read or generated for it."""
        return [self._evaluation(length, standard=i == 0) for i, length in enumerate(self.eval_lengths)]

    def eval_groups(self, length: int) -> tuple[str, ...]:  # noqa: ARG002 - a subclass may need it
        """Return the names of the groups of positions whose loss and accuracy are measured on their own."""
        return ()

    def eval_set(self, split: str, evaluation: Evaluation) -> EvalBatches:
        """Return the batches of one of the `evaluations` and their number."""
        return self.eval_batches(split, evaluation.length)

    def eval_batches(self, split: str, length: int) -> EvalBatches:
        """Return the function that makes batch i of a split (`val` or `test`), and how many batches there are."""
        raise NotImplementedError

    def train_dataloader(self) -> BatchStream:
        batch_at, shares = self.train_batches(), self._shares()
        if self.split_rows:
            batch_at = RowsOfRank(batch_at, shares["rank"], shares["world_size"])
            shares |= {"rank": 0, "world_size": 1}
        return BatchStream(batch_at=batch_at, start=self._first_batch, **shares)

    def val_dataloader(self) -> list[FiniteBatchStream]:
        return [self._eval_stream("val", evaluation) for evaluation in self.evaluations()]

    def test_dataloader(self) -> list[FiniteBatchStream]:
        return [self._eval_stream("test", evaluation) for evaluation in self.evaluations()]

    def predict_dataloader(self) -> FiniteBatchStream:
        return self._eval_stream("test", self.evaluations()[0])

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch, but for the bounds of its documents: the model reads them on the CPU and brings them along."""
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return {**moved, "cu_seqlens": batch["cu_seqlens"]} if "cu_seqlens" in batch else moved

    def state_dict(self) -> dict[str, Any]:
        batches = {"batches": self._batches_done(), "batches_of_a_rank": self._batches_of_a_rank()}
        return {**batches, "batch_size": self.batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind the batches of a checkpoint; with `rows_in_turn`, behind their rows, if need be within a batch.

        A batch of another size that was trained on in part is trained on again, so that no row is left out. Where a
        batch is drawn from its number alone, the next number is new data whatever the size.
        """
        self._restored = {"batches_of_a_rank": state_dict["batches"], **state_dict}
        if self.rows_in_turn:
            rows = state_dict["batches"] * state_dict.get("batch_size", self.batch_size)
            self._restored["batches"] = rows // self.batch_size

    def _first_batch(self) -> int:
        """Return where a pass begins: behind the batches trained on, but with overfit_batches with the same ones."""
        done, trainer = self._batches_done(), self.trainer
        number = 0 if trainer is None else trainer.overfit_batches  # type: ignore[attr-defined]
        # a share of batches without end is all of them
        return done % (number * self.batches_at_once) if number and isinstance(number, int) else done

    def _batches_done(self) -> int:
        """Return how many batches all ranks together have trained on, as many ranks as there were."""
        more = self._batches_of_a_rank() - self._restored["batches_of_a_rank"]
        return self._restored["batches"] + more * self.batches_at_once

    def _batches_of_a_rank(self) -> int:
        if self.trainer is None:
            return self._restored["batches_of_a_rank"]
        # Lightning restores its own count only after it may have asked for the loader
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
        processed: int = progress.total.processed
        return max(self._restored["batches_of_a_rank"], processed)

    def _evaluation(self, length: int, *, variant: str = "", standard: bool = False) -> Evaluation:
        metrics, groups = self.extra_metrics, self.eval_groups(length)
        return Evaluation(length=length, variant=variant, standard=standard, metrics=metrics, groups=groups)

    def _eval_stream(self, split: str, evaluation: Evaluation) -> FiniteBatchStream:
        batch_at, stop = self.eval_set(split, evaluation)
        return FiniteBatchStream(batch_at=batch_at, stop=stop, **self._shares())

    def eval_rows(self, length: int) -> int:
        """Return the rows of an evaluation batch: as many tokens as a training batch has, at least one row."""
        return max(1, self.tokens_per_batch // length)

    def _shares(self) -> dict[str, Any]:
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        pinned = trainer is not None and trainer.strategy.root_device.type == "cuda"
        return {"rank": rank, "world_size": world_size, "num_workers": self.num_workers, "pinned": pinned}


def check_at_least(low: int, **values: int) -> None:
    """Raise ConfigError unless each of these arguments is at least `low`."""
    for name, value in values.items():
        if value < low:
            raise ConfigError(f"data.{name}: must be at least {low}; got {value}")
