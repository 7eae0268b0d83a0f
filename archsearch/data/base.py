"""What all data modules share: batches by number, loaders that go on where a run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as lightning
import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from archsearch.config import ConfigError

Batch = dict[str, Tensor]

TRAIN, VALIDATE, TEST = range(3)
"""The splits; each draws its own random numbers."""


class TokenData(lightning.LightningDataModule):
    """Sequences of tokens to predict; a subclass draws the batches.

    A batch holds `tokens` and `targets` `[B, T]` int64 (-100: not scored) and, where documents are packed,
    `cu_seqlens`, their bounds over the B x T tokens laid end to end.
    """

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        eval_lengths: list[int] | None,
        eval_sequences: int,
        seed: int,
        num_workers: int,
    ) -> None:
        super().__init__()
        self.length, self.batch_size, self.seed, self.num_workers = length, batch_size, seed, num_workers
        self.eval_lengths = list(dict.fromkeys([length, *(eval_lengths or [])]))
        self.eval_sequences = eval_sequences
        numbers = {"length": length, "batch_size": batch_size, "eval_sequences": eval_sequences}
        numbers |= {f"eval_lengths[{i}]": value for i, value in enumerate(eval_lengths or [])}
        for name, value in numbers.items():
            if value < 1:
                raise ConfigError(f"{type(self).__name__}: {name}: must be at least 1; got {value}")

    @property
    def vocab_size(self) -> int:
        """The number of distinct tokens."""
        raise NotImplementedError

    def train_batch(self, index: int) -> Batch:
        """Return training batch `index`, counted from 0."""
        raise NotImplementedError

    def eval_batch(self, split: int, length: int, index: int) -> Batch:
        """Return batch `index` of the sequences of `length` that `split` is evaluated on."""
        raise NotImplementedError

    def rng(self, split: int, index: int, *more: int) -> np.random.Generator:
        """Return the random numbers of one batch."""
        return np.random.default_rng([self.seed, split, index, *more])

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of the whole run, from the first that the trainer has not stepped on yet."""
        return self._loader(self.train_batch, _Onward(self.trainer))

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        return self._eval_loaders(VALIDATE)

    def test_dataloader(self) -> list[DataLoader[Batch]]:
        return self._eval_loaders(TEST)

    def predict_dataloader(self) -> list[DataLoader[Batch]]:
        return self._eval_loaders(TEST)

    def _eval_loaders(self, split: int) -> list[DataLoader[Batch]]:
        count = -(-self.eval_sequences // self.batch_size)

        def drawn(length: int) -> Callable[[int], Batch]:
            return lambda index: self.eval_batch(split, length, index)

        return [self._loader(drawn(length), range(count)) for length in self.eval_lengths]

    def _loader(self, draw: Callable[[int], Batch], indices: Any) -> DataLoader[Batch]:
        workers = {"num_workers": self.num_workers, "persistent_workers": self.num_workers > 0}
        if self.num_workers:
            workers["multiprocessing_context"] = "fork"
        return DataLoader(_Batches(draw), batch_size=None, sampler=indices, **workers)  # type: ignore[arg-type]


class _Batches(Dataset[Batch]):
    def __init__(self, draw: Callable[[int], Batch]) -> None:
        self.draw = draw

    def __getitem__(self, index: int) -> Batch:
        return self.draw(index)


class _Onward(Sampler[int]):
    """The numbers of the batches still to come: those behind `global_step` optimizer steps have been trained on."""

    BATCHES_PER_EPOCH = 1000  # where the trainer counts epochs instead of steps

    def __init__(self, trainer: lightning.Trainer | None) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        if self.trainer is None or self.trainer.max_steps < 0:
            return self.BATCHES_PER_EPOCH
        return max(1, self.trainer.max_steps * self.trainer.accumulate_grad_batches)

    def __iter__(self) -> Iterator[int]:
        done = self.trainer.global_step * self.trainer.accumulate_grad_batches if self.trainer else 0
        return iter(range(done, (done // len(self) + 1) * len(self)))
