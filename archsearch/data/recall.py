"""Multi-query associative recall: give back the value that stood behind a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.base import TokenData, check_at_least
from archsearch.data.curriculum import Curriculum
from archsearch.data.evaluation import Buckets, EvalBatches, Evaluation
from archsearch.data.stream import IGNORED, Batch

SPLITS = ("train", "val", "test")
BLANK = 0
DISTANCES = Buckets("distance", (1, 4, 16, 64, 256, 1024, 4096, 16384))

Spacing = Literal["power_law", "uniform"]
Filler = Literal["random", "blank"]


class Shape(NamedTuple):
    """The size of a sequence."""

    length: int
    num_pairs: int
    num_queries: int

    @property
    def pairs_end(self) -> int:
        """Where the pairs end."""
        return 2 * self.num_pairs

    @property
    def shortest(self) -> int:
        """The length that pairs and queries need."""
        return self.pairs_end + self.num_queries

    def with_pairs(self, num_pairs: int) -> Shape:
        """Return the shape scaled down to fewer pairs; at least one is asked for."""
        queries = max(1, self.num_queries * num_pairs // self.num_pairs)
        return Shape(max(2 * num_pairs + queries, self.length * num_pairs // self.num_pairs), num_pairs, queries)


class Recall(TokenData):
    """Pairs of a key and a value, then some of the keys again among filler: the target of each is its value.

    Multi-query associative recall in the manner of Arora et al., arXiv:2312.04927: the pairs stand at the front, keys
    of a sequence are distinct, values are uniform, so guessing scores 1 / (number of values). Each key is asked for at
    most once; every other position is not scored. Of the vocabulary, 0 is the blank, 1 to vocab_size // 2 are keys and
    the rest are values. The validation and test sequences are the same whatever the seed and the batch size.
    """

    extra_metrics = ("exact",)

    def __init__(
        self,
        num_pairs: int = 8,
        length: int = 64,
        batch_size: int = 32,
        vocab_size: int = 128,
        num_queries: int | None = None,
        spacing: Spacing = "power_law",
        power: float = 0.01,
        filler: Filler = "random",
        eval_lengths: list[int] | None = None,
        eval_pairs: list[int] | None = None,
        eval_size: int = 256,
        curriculum_start: int | None = None,
        curriculum_hold: int = 0,
        curriculum_steps: int = 0,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the task; nothing is generated before it is asked for.

        Args:
            num_pairs: Pairs of a training sequence.
            length: Tokens per training sequence; at least 2 x `num_pairs` plus the queries.
            batch_size: Sequences per training batch.
            vocab_size: Number of tokens.
            num_queries: Keys that are asked for, at most. Default: all of a sequence.
            spacing: How far behind the pairs a query stands: power_law prefers the near places (the g-th with weight
                g^(power - 1)), uniform takes all alike.
            power: Of the power law; 0.01 in the paper.
            filler: What stands between the queries: random tokens other than the keys of the sequence, or the blank.
            eval_lengths: Lengths of the validation and test sequences besides `length`, whose metrics are also logged
                without a length, as val/accuracy. Default: 4 x `length`.
            eval_pairs: Numbers of pairs besides `num_pairs` in validation and test, at each of the lengths that they
                fit in; their metrics are called val/accuracy/256/32_pairs. Default: 4 x `num_pairs` where they fit.
            eval_size: Validation (and test) sequences per length and number of pairs.
            curriculum_start: Pairs of the first training batch; from there they grow by equal factors up to
                `num_pairs`, and the length and the queries with them. Default: every batch has `num_pairs`.
            curriculum_hold: Training batches with `curriculum_start` pairs before they grow.
            curriculum_steps: Training batches, those held included, after which there are `num_pairs`.
            seed: Of the training sequences. Default: that of `seed_everything` on the command line, else 0.
            num_workers: Processes that make batches; 0 makes them in a thread of the training process, two ahead.
        """
        super().__init__(
            length=length, batch_size=batch_size, eval_lengths=eval_lengths, seed=seed, num_workers=num_workers
        )
        check_at_least(1, num_pairs=num_pairs, eval_size=eval_size)
        check_at_least(4, vocab_size=vocab_size)
        if num_queries is not None and not 1 <= num_queries <= num_pairs:
            raise ConfigError(f"data.num_queries: must be from 1 to num_pairs ({num_pairs}); got {num_queries}")
        if not 0 < power <= 1:
            raise ConfigError(f"data.power: must be above 0 and at most 1; got {power}")
        for name, value, known in (("spacing", spacing, Spacing), ("filler", filler, Filler)):
            if value not in get_args(known):
                raise ConfigError(f"data.{name}: must be {' or '.join(get_args(known))}; got {value!r}")
        self.num_pairs, self.num_queries, self.eval_size = num_pairs, num_queries, eval_size
        self.sampler = Sampler(vocab_size, spacing, power, filler)
        self.eval_pairs = [4 * num_pairs] if eval_pairs is None else eval_pairs
        self._check_sizes(asked=eval_pairs is not None)
        self._pairs_at = Curriculum(
            size=num_pairs, size_name="num_pairs", start=curriculum_start, hold=curriculum_hold, steps=curriculum_steps
        )
        self.save_hyperparameters(logger=False)

    @property
    def vocab_size(self) -> int:
        return self.sampler.vocab_size

    def default_eval_lengths(self) -> list[int]:
        return [4 * self.length]

    def eval_groups(self, length: int) -> tuple[str, ...]:
        return DISTANCES.below(length).names

    def evaluations(self) -> list[Evaluation]:
        """Return the lengths, and each other number of pairs at every length that it fits in."""
        pairs = [
            self._evaluation(length, variant=f"{num_pairs}_pairs")
            for num_pairs in self.eval_pairs
            for length in self.eval_lengths
            if num_pairs != self.num_pairs and self._fits(length, num_pairs)
        ]
        return [*super().evaluations(), *pairs]

    def train_batches(self) -> Callable[[int], Batch]:
        shape = self._shape(self.length, self.num_pairs)
        return TrainingRecall(self.sampler, shape, self._pairs_at, self.batch_size, self.seed)

    def eval_batches(self, split: str, length: int) -> EvalBatches:
        return self._eval_batches(split, length, self.num_pairs)

    def eval_set(self, split: str, evaluation: Evaluation) -> EvalBatches:
        num_pairs = int(evaluation.variant.partition("_")[0] or self.num_pairs)
        return self._eval_batches(split, evaluation.length, num_pairs)

    def _eval_batches(self, split: str, length: int, num_pairs: int) -> EvalBatches:
        rows = self.eval_rows(length)
        batch_at = EvaluationRecall(self.sampler, split, self._shape(length, num_pairs), self.eval_size, rows)
        return batch_at, -(-self.eval_size // rows)

    def _shape(self, length: int, num_pairs: int) -> Shape:
        return Shape(length, num_pairs, num_pairs if self.num_queries is None else min(self.num_queries, num_pairs))

    def _fits(self, length: int, num_pairs: int) -> bool:
        return num_pairs <= self.sampler.num_keys and self._shape(length, num_pairs).shortest <= length

    def _check_sizes(self, *, asked: bool) -> None:
        """Raise ConfigError where the pairs do not fit in a length or in the vocabulary."""
        keys, shortest = self.sampler.num_keys, self._shape(self.length, self.num_pairs).shortest
        most = f"must be at most vocab_size // 2 ({keys}), the number of keys"
        if self.num_pairs > keys:
            raise ConfigError(f"data.num_pairs: {most}; got {self.num_pairs}")
        for name, length in (("length", self.length), ("eval_lengths", min(self.eval_lengths))):
            if length < shortest:
                rule = f"must be at least 2 x num_pairs plus the queries ({shortest})"
                raise ConfigError(f"data.{name}: {rule}; got {length}")
        longest = max(self.eval_lengths)
        for num_pairs in self.eval_pairs if asked else ():
            check_at_least(1, eval_pairs=num_pairs)
            if num_pairs > keys:
                raise ConfigError(f"data.eval_pairs: {most}; got {num_pairs}")
            if not self._fits(longest, num_pairs):
                needed = self._shape(longest, num_pairs).shortest
                rule = f"2 x pairs plus the queries ({needed}) must fit in an evaluation length (at most {longest})"
                raise ConfigError(f"data.eval_pairs: {rule}; got {num_pairs}")


@dataclass(frozen=True)
class Sampler:
    """Draws sequences; the same generator and shape give the same ones."""

    vocab_size: int
    spacing: Spacing
    power: float
    filler: Filler

    @property
    def num_keys(self) -> int:
        """How many tokens are keys: those from 1 on."""
        return self.vocab_size // 2

    def draw(
        self, rng: np.random.Generator, rows: int, shape: Shape
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens, targets, and the distance of each query from its key (0 elsewhere), each `[rows, length]`."""
        keys = rng.permuted(np.tile(np.arange(1, self.num_keys + 1), (rows, 1)), axis=1)
        values = rng.integers(self.num_keys + 1, self.vocab_size, size=(rows, shape.num_pairs))
        tokens = self._filler(rng, keys, shape)
        tokens[:, 0 : shape.pairs_end : 2] = keys[:, : shape.num_pairs]
        tokens[:, 1 : shape.pairs_end : 2] = values
        targets = np.full_like(tokens, IGNORED)
        distances = np.zeros_like(tokens)
        asked = rng.permuted(np.tile(np.arange(shape.num_pairs), (rows, 1)), axis=1)[:, : shape.num_queries]
        row, places = np.arange(rows)[:, None], shape.pairs_end + self._gaps(rng, rows, shape)
        tokens[row, places] = keys[row, asked]
        targets[row, places] = values[row, asked]
        distances[row, places] = places - 2 * asked
        return tokens, targets, distances

    def _filler(self, rng: np.random.Generator, keys: NDArray[np.int64], shape: Shape) -> NDArray[np.int64]:
        """Return rows without any key of their own, so that a key stands in a row once with its value, once alone."""
        if self.filler == "blank":
            return np.full((len(keys), shape.length), BLANK)
        values = np.tile(np.arange(self.num_keys + 1, self.vocab_size), (len(keys), 1))
        others = np.concatenate([keys[:, shape.num_pairs :], values], axis=1)
        return np.take_along_axis(others, rng.integers(others.shape[1], size=(len(keys), shape.length)), axis=1)

    def _gaps(self, rng: np.random.Generator, rows: int, shape: Shape) -> NDArray[np.int64]:
        """Return distinct places behind the pairs, drawn one after the other by weight: the smallest of E / weight."""
        places = np.arange(1, shape.length - shape.pairs_end + 1)
        weights = places ** (self.power - 1.0) if self.spacing == "power_law" else np.ones(len(places))
        waiting = rng.exponential(size=(rows, len(places))) / weights
        return np.argsort(waiting, axis=1)[:, : shape.num_queries]


@dataclass(frozen=True)
class TrainingRecall:
    """Training batch i of a seed."""

    sampler: Sampler
    shape: Shape
    pairs_at: Callable[[int], int]
    batch_size: int
    seed: int

    def __call__(self, index: int) -> Batch:
        rng = np.random.default_rng([SPLITS.index("train"), self.seed, index])
        tokens, targets, _ = self.sampler.draw(rng, self.batch_size, self.shape.with_pairs(self.pairs_at(index)))
        return {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}


@dataclass(frozen=True)
class EvaluationRecall:
    """Batch i of the fixed sequences of a split and shape."""

    sampler: Sampler
    split: str
    shape: Shape
    size: int
    rows: int

    def __call__(self, index: int) -> Batch:
        part = slice(index * self.rows, (index + 1) * self.rows)
        tokens, targets, distances = (values[part] for values in self._sequences)
        groups = np.where(distances > 0, DISTANCES.below(self.shape.length).of(distances), -1)
        arrays = {"tokens": tokens, "targets": targets, "groups": groups}
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    @cached_property
    def _sequences(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        rng = np.random.default_rng([SPLITS.index(self.split), self.shape.length, self.shape.num_pairs])
        return self.sampler.draw(rng, self.size, self.shape)
