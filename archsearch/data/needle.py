"""Needle retrieval: find what was said once, anywhere in a long row of noise or text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.base import TokenData, check_at_least
from archsearch.data.corpus import Corpus, check_source, open_corpus
from archsearch.data.curriculum import Curriculum
from archsearch.data.evaluation import Buckets, EvalBatches
from archsearch.data.needle_row import Haystack, Noise, Passages, RowFormat, write_row
from archsearch.data.stream import Batch

SPLITS = ("train", "val", "test")
DEPTHS = Buckets("depth", (0, 25, 50, 75))

HaystackKind = Literal["noise", "text"]


class Needle(TokenData):
    """Rows of filler with needles `<SOH>key<STX>value<ETX>` at random depths, and questions at the end.

    A question is `<ENQ>key` followed by `<STX>value` for each of the key's values in the order of the row; only the
    bytes of these values are scored. One needle in noise, in text, distractor keys, several queries and several values
    are the tasks of RULER (Hsieh et al., arXiv:2404.06654) in bytes. Keys are lower-case letters, values digits, so
    guessing a byte scores 0.1. Tokens are those of `Text`: bytes, and 256 in front of each row; the four control
    bytes occur in needles and questions alone. The validation and test rows are the same whatever the seed and the
    batch size; in text, they lie in the documents of their own split.
    """

    extra_metrics = ("exact",)

    def __init__(
        self,
        length: int = 128,
        batch_size: int = 32,
        haystack: HaystackKind = "noise",
        num_queries: int = 1,
        num_values: int = 1,
        num_distractors: int = 0,
        key_length: int = 2,
        value_length: int = 2,
        eval_lengths: list[int] | None = None,
        eval_size: int = 256,
        path: str | None = None,
        glob: str = "*",
        cache_dir: str | None = None,
        curriculum_start: int | None = None,
        curriculum_hold: int = 0,
        curriculum_steps: int = 0,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the task; files are read when training starts.

        Args:
            length: Tokens per training row.
            batch_size: Rows per training batch.
            haystack: What the needles lie in: noise (random printable bytes) or text (of the corpus that `path` names).
            num_queries: Keys that are asked for, one after the other.
            num_values: Values of each of these keys, every one a needle of its own; all have to be listed.
            num_distractors: Needles with other keys, which nobody asks for.
            key_length: Letters of a key; all keys of a row are different.
            value_length: Digits of a value.
            eval_lengths: Lengths of the validation and test rows besides `length`, whose metrics are also logged
                without a length, as val/accuracy. Default: 4 x `length`.
            eval_size: Validation (and test) rows per length.
            path: The text, where the haystack is one: see Text. Default: the standard library's .py files.
            glob: Which file names in a folder count, such as *.py or *.txt.
            cache_dir: Where the memory-mapped bytes are kept. Default: $XDG_CACHE_HOME/archsearch or
                ~/.cache/archsearch.
            curriculum_start: Length of the first training batch; from there it grows by equal factors up to `length`.
                Default: every batch has `length`.
            curriculum_hold: Training batches of length `curriculum_start` before it grows.
            curriculum_steps: Training batches, those held included, after which the length is `length`.
            seed: Of the training rows. Default: that of `seed_everything` on the command line, else 0.
            num_workers: Processes that make batches; 0 makes them in a thread of the training process, two ahead.
        """
        super().__init__(
            length=length, batch_size=batch_size, eval_lengths=eval_lengths, seed=seed, num_workers=num_workers
        )
        check_at_least(1, num_queries=num_queries, num_values=num_values)
        check_at_least(1, key_length=key_length, value_length=value_length, eval_size=eval_size)
        check_at_least(0, num_distractors=num_distractors)
        if haystack not in get_args(HaystackKind):
            raise ConfigError(f"data.haystack: must be {' or '.join(get_args(HaystackKind))}; got {haystack!r}")
        self.row_format = RowFormat(num_queries, num_values, num_distractors, key_length, value_length)
        self.haystack, self.eval_size = haystack, eval_size
        self.path = None if path is None else str(Path(path).expanduser())
        self.glob, self.cache_dir = glob, cache_dir
        check_source(self.path)
        self._corpus: Corpus | None = None
        self._check_sizes()
        self._length_at = Curriculum(
            size=length,
            size_name="length",
            start=curriculum_start,
            hold=curriculum_hold,
            steps=curriculum_steps,
            low=self.row_format.shortest,
        )
        self.save_hyperparameters(logger=False)

    @property
    def vocab_size(self) -> int:
        return 257

    def default_eval_lengths(self) -> list[int]:
        return [4 * self.length]

    def eval_groups(self, length: int) -> tuple[str, ...]:  # noqa: ARG002 - depths are relative
        return DEPTHS.names

    def prepare_data(self) -> None:
        """Build the cache of the text, once per machine."""
        if self.haystack == "text":
            open_corpus(self.path, self.glob, self.cache_dir)

    def train_batches(self) -> Callable[[int], Batch]:
        return TrainingRows(self.row_format, self._filler("train"), self._length_at, self.batch_size, self.seed)

    def eval_batches(self, split: str, length: int) -> EvalBatches:
        rows = self.eval_rows(length)
        batch_at = EvaluationRows(self.row_format, self._filler(split), split, length, self.eval_size, rows)
        return batch_at, -(-self.eval_size // rows)

    def _filler(self, split: str) -> Haystack:
        if self.haystack == "noise":
            return Noise()
        if self._corpus is None:
            self._corpus = open_corpus(self.path, self.glob, self.cache_dir)
        return Passages(self._corpus, split)

    def _check_sizes(self) -> None:
        keys = self.row_format.num_keys
        if keys > 26**self.row_format.key_length:
            rule = f"must make num_queries + num_distractors ({keys}) different keys of 26 letters"
            raise ConfigError(f"data.key_length: {rule}; got {self.row_format.key_length}")
        shortest = self.row_format.shortest
        for name, length in (("length", self.length), ("eval_lengths", min(self.eval_lengths))):
            if length < shortest:
                rule = f"must be at least {shortest}, which needles and questions take"
                raise ConfigError(f"data.{name}: {rule}; got {length}")


@dataclass(frozen=True)
class TrainingRows:
    """Training batch i of a seed."""

    row_format: RowFormat
    haystack: Haystack
    length_at: Callable[[int], int]
    batch_size: int
    seed: int

    def __call__(self, index: int) -> Batch:
        rng = np.random.default_rng([SPLITS.index("train"), self.seed, index])
        return _rows(rng, self.row_format, self.haystack, self.length_at(index), self.batch_size, groups=False)


@dataclass(frozen=True)
class EvaluationRows:
    """Batch i of the fixed rows of a split and length."""

    row_format: RowFormat
    haystack: Haystack
    split: str
    length: int
    size: int
    rows: int

    def __call__(self, index: int) -> Batch:
        part = slice(index * self.rows, (index + 1) * self.rows)
        return {name: values[part] for name, values in self._all.items()}

    @cached_property
    def _all(self) -> Batch:
        rng = np.random.default_rng([SPLITS.index(self.split), self.length])
        return _rows(rng, self.row_format, self.haystack, self.length, self.size, groups=True)


def _rows(
    rng: np.random.Generator, row_format: RowFormat, haystack: Haystack, length: int, count: int, *, groups: bool
) -> Batch:
    rows = [write_row(rng, row_format, haystack, length) for _ in range(count)]
    batch = {
        "tokens": torch.from_numpy(np.stack([row.tokens for row in rows])),
        "targets": torch.from_numpy(np.stack([row.targets for row in rows])),
    }
    if groups:
        depths: NDArray[np.int64] = np.stack([row.depths for row in rows])
        batch["groups"] = torch.from_numpy(np.where(depths >= 0, DEPTHS.of(np.maximum(depths, 0)), -1))
    return batch
