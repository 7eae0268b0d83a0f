"""The rows of our own suites: row r of a task, length and seed is one row, whatever is evaluated beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.data.evaluation import Buckets
from archsearch.data.needle import DEPTHS
from archsearch.data.needle_row import Haystack, RowFormat, write_row
from archsearch.data.packing import PackedRows, packed_batch, plain_batch
from archsearch.data.recall import DISTANCES, Sampler, Shape
from archsearch.data.state_tracking import running_products
from archsearch.data.stream import Batch
from archsearch.data.text import CONTEXTS, context_lengths

EVALUATION = 3  # behind the numbers of the splits: these rows are none that anything is trained or validated on


class RowSource(Protocol):
    """Rows by their numbers.

    A batch holds, besides what a model takes, where there are `groups` the number of each position's group and, where
    rows are not what was drawn, `units` `[B, T]`: the number of the document of each position.
    """

    @property
    def unit(self) -> str:
        """What was drawn: rows or documents."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of positions that are measured on their own."""

    def batch(self, rows: range) -> Batch:
        """Make these rows, and nothing else."""


@dataclass(frozen=True)
class Words:
    """Word problems of a group."""

    table: NDArray[np.int64]
    length: int
    seed: int
    unit: str = "rows"
    groups: tuple[str, ...] = ()

    def batch(self, rows: range) -> Batch:
        words = np.stack(
            [_rng(self.seed, self.length, row).integers(len(self.table), size=self.length) for row in rows]
        )
        return _tensors(tokens=words, targets=running_products(words, self.table))


@dataclass(frozen=True)
class Pairs:
    """Multi-query associative recall; groups are distances."""

    sampler: Sampler
    shape: Shape
    seed: int
    unit: str = "rows"

    @property
    def groups(self) -> tuple[str, ...]:
        return DISTANCES.below(self.shape.length).names

    def batch(self, rows: range) -> Batch:
        rngs = (_rng(self.seed, self.shape.length, row, self.shape.num_pairs) for row in rows)
        drawn = [self.sampler.draw(rng, 1, self.shape) for rng in rngs]
        tokens, targets, distances = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        return _tensors(tokens=tokens, targets=targets, groups=_grouped(DISTANCES, distances, distances > 0))


@dataclass(frozen=True)
class Needles:
    """Needles in a haystack; groups are depths."""

    row_format: RowFormat
    haystack: Haystack
    length: int
    seed: int
    unit: str = "rows"
    groups: tuple[str, ...] = DEPTHS.names

    def batch(self, rows: range) -> Batch:
        made = [write_row(_rng(self.seed, self.length, r), self.row_format, self.haystack, self.length) for r in rows]
        tokens, targets, depths = (np.stack(parts) for parts in zip(*made, strict=True))
        return _tensors(tokens=tokens, targets=targets, groups=_grouped(DEPTHS, depths, depths >= 0))


@dataclass(frozen=True)
class Passages:
    """Rows of text in an order that the seed says; groups are contexts, what was drawn are documents."""

    packed: PackedRows
    mask: bool
    groups: tuple[str, ...]
    unit: str = "documents"

    def batch(self, rows: range) -> Batch:
        tokens = np.stack([self.packed.row(row) for row in rows])
        separator = self.packed.corpus.separator if self.mask else None
        batch = plain_batch(tokens) if separator is None else packed_batch(tokens, separator)
        batch["units"] = torch.from_numpy(np.stack([self.packed.row_documents(row) for row in rows]))
        if self.groups:
            batch["groups"] = torch.from_numpy(CONTEXTS.of(context_lengths(tokens[:, :-1], separator)))
        return batch


def _rng(seed: int, length: int, row: int, variant: int = 0) -> np.random.Generator:
    return np.random.default_rng([EVALUATION, seed, length, variant, row])


def _grouped(buckets: Buckets, numbers: NDArray[np.int64], has_group: NDArray[np.bool_]) -> NDArray[np.int64]:
    lowest = buckets.edges[0]
    return np.where(has_group, buckets.of(np.maximum(numbers, lowest)), -1)


def _tensors(**arrays: NDArray[Any]) -> Batch:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
