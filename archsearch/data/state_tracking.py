"""Word problems of finite groups: predict the running product at each position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.data.base import TokenData, check_at_least
from archsearch.data.curriculum import Curriculum
from archsearch.data.evaluation import EvalBatches
from archsearch.data.groups import multiplication_table
from archsearch.data.stream import Batch

SPLITS = ("train", "val", "test")


class StateTracking(TokenData):
    """Word problems of a finite group: tokens are random elements, the target is their product so far.

    y_t = x_1 · x_2 · ... · x_t, where in a group of permutations a · b means first a, then b (the word problem of
    Merrill et al., arXiv:2404.08819). Tokens are uniform and independent, so guessing scores 1 / (number of elements).
    The validation and test sequences of a length are the same whatever the seed and the batch size.
    """

    extra_metrics = ("last_accuracy",)

    def __init__(
        self,
        group: str = "S3",
        length: int = 32,
        batch_size: int = 32,
        eval_lengths: list[int] | None = None,
        eval_size: int = 256,
        curriculum_start: int | None = None,
        curriculum_hold: int = 0,
        curriculum_steps: int = 0,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the task; nothing is generated before it is asked for.

        Args:
            group: S<n> (all permutations of n points), A<n> (the even ones) or Z<n> (addition modulo n): S3, A5, Z60.
            length: Tokens per training sequence.
            batch_size: Sequences per training batch.
            eval_lengths: Lengths of the validation and test sequences besides `length`, whose metrics are also
                logged without a length, as val/accuracy. Default: 4 x `length`.
            eval_size: Validation (and test) sequences per length.
            curriculum_start: Length of the first training batch; from there it grows by equal factors up to `length`.
                Default: every batch has `length`.
            curriculum_hold: Training batches of length `curriculum_start` before it grows.
            curriculum_steps: Training batches, those held included, after which the length is `length`.
            seed: Of the training sequences. Default: that of `seed_everything` on the command line, else 0.
            num_workers: Processes that make batches; 0 makes them in a thread of the training process, two ahead.
        """
        super().__init__(
            length=length, batch_size=batch_size, eval_lengths=eval_lengths, seed=seed, num_workers=num_workers
        )
        check_at_least(1, eval_size=eval_size)
        self.group = group
        self.eval_size = eval_size
        self._table = multiplication_table(group)
        self._length_at = Curriculum(
            size=length, size_name="length", start=curriculum_start, hold=curriculum_hold, steps=curriculum_steps
        )
        self.save_hyperparameters(logger=False)

    @property
    def vocab_size(self) -> int:
        return len(self._table)

    def default_eval_lengths(self) -> list[int]:
        return [4 * self.length]

    def train_batches(self) -> Callable[[int], Batch]:
        return TrainingWords(self._table, self._length_at, self.batch_size, self.seed)

    def eval_batches(self, split: str, length: int) -> EvalBatches:
        rows = self.eval_rows(length)
        return EvaluationWords(self._table, split, length, self.eval_size, rows), -(-self.eval_size // rows)


@dataclass(frozen=True)
class TrainingWords:
    """Training batch i of a seed."""

    table: NDArray[np.int64]
    length_at: Callable[[int], int]
    batch_size: int
    seed: int

    def __call__(self, index: int) -> Batch:
        rng = np.random.default_rng([SPLITS.index("train"), self.seed, index])
        words = rng.integers(len(self.table), size=(self.batch_size, self.length_at(index)))
        return _batch(words, self.table)


@dataclass(frozen=True)
class EvaluationWords:
    """Batch i of the fixed sequences of a split and length."""

    table: NDArray[np.int64]
    split: str
    length: int
    size: int
    rows: int

    def __call__(self, index: int) -> Batch:
        return _batch(self._words[index * self.rows : (index + 1) * self.rows], self.table)

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        rng = np.random.default_rng([SPLITS.index(self.split), self.length])
        return rng.integers(len(self.table), size=(self.size, self.length))


def running_products(words: NDArray[np.int64], table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return x_1 · ... · x_t for every t of `words` `[B, T]`."""
    products = np.empty_like(words)
    product = np.zeros(len(words), dtype=np.int64)
    for t in range(words.shape[1]):
        product = table[product, words[:, t]]
        products[:, t] = product
    return products


def _batch(words: NDArray[np.int64], table: NDArray[np.int64]) -> Batch:
    return {"tokens": torch.from_numpy(words), "targets": torch.from_numpy(running_products(words, table))}
