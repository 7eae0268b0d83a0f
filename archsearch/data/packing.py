"""Rows of a fixed length cut from documents laid end to end, any row by its number."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.data.stream import Batch

START = 256
"""The token in front of every document of bytes; the target of a document's last byte, too."""


class Documents(Protocol):
    """Documents by their numbers, and the token that stands in front of each in a row: the `separator`."""

    @property
    def separator(self) -> int: ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each document, without the separator."""

    def documents(self, split: str) -> NDArray[np.int64]:
        """Return the numbers of the documents in a split."""

    def read(self, document: int, first: int, last: int) -> NDArray[Any]:
        """Return tokens `first` to `last` of a document."""


class PackedRows:
    """Rows of `length` tokens and their next tokens; row r of epoch e is a pure function of (seed, e, r).

    A document is the separator and its tokens. Every epoch lays the documents end to end in a new order, cuts them
    into rows (the rest that fills no row is left out) and takes the rows in a new order. Without a seed the orders are
    as stored.
    """

    def __init__(self, corpus: Documents, documents: NDArray[np.int64], length: int, seed: int | None = None) -> None:
        self.corpus, self.documents, self.length, self.seed = corpus, documents, length, seed
        self._lengths = corpus.lengths[documents] + 1
        self.tokens = int(self._lengths.sum())
        self.rows = max(0, (self.tokens - 1) // length)

    def row(self, number: int) -> NDArray[np.int64]:
        """Return row `number`, counted over all epochs, with one token more for the last target: `[length + 1]`."""
        epoch, place = divmod(number, self.rows)
        documents, ends, rows = _epoch(self, epoch)
        start = rows[place] * self.length
        return self._tokens(start, start + self.length + 1, documents, ends)

    def row_documents(self, number: int) -> NDArray[np.int64]:
        """Return which document each token of row `number` is of, without the last target: `[length]`."""
        epoch, place = divmod(number, self.rows)
        documents, ends, rows = _epoch(self, epoch)
        places = rows[place] * self.length + np.arange(self.length)
        found: NDArray[np.int64] = documents[np.searchsorted(ends, places, side="right")]
        return found

    def tokens_from(self, start: int, length: int) -> NDArray[np.int64]:
        """Return `length` tokens of the first epoch from the `start`-th on."""
        documents, ends, _ = _epoch(self, 0)
        return self._tokens(start, start + length, documents, ends)

    def _tokens(
        self, start: int, stop: int, documents: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        tokens = np.empty(stop - start, dtype=np.int64)
        filled, i = 0, int(np.searchsorted(ends, start, side="right"))
        while filled < len(tokens):
            document = documents[i]
            length = self.corpus.lengths[document]
            offset = start + filled - (ends[i] - length - 1)  # 0 is the separator
            if offset == 0:
                tokens[filled] = self.corpus.separator
                filled, offset = filled + 1, 1
            content = self.corpus.read(document, offset - 1, min(length, offset - 1 + len(tokens) - filled))
            tokens[filled : filled + len(content)] = content
            filled, i = filled + len(content), i + 1
        return tokens


@lru_cache(maxsize=4)
def _epoch(packed: PackedRows, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the documents in an epoch's order, where each ends, and the order of the rows."""
    order, rows = np.arange(len(packed.documents)), np.arange(packed.rows)
    if packed.seed is not None:
        rng = np.random.default_rng([packed.seed, epoch])
        rng.shuffle(order)
        rng.shuffle(rows)
    return packed.documents[order], packed._lengths[order].cumsum(), rows


def packed_batch(rows: NDArray[np.int64], separator: int = START) -> Batch:
    """Return a batch of `rows` `[B, T + 1]`; documents and rows bound what a position sees."""
    batch = plain_batch(rows)
    starts = rows[:, :-1] == separator
    starts[:, 0] = True
    batch["cu_seqlens"] = torch.from_numpy(np.append(np.flatnonzero(starts), starts.size))
    return batch


def plain_batch(rows: NDArray[np.int64]) -> Batch:
    """Return a batch of `rows` `[B, T + 1]` in which a position sees all of its row before it."""
    return {
        "tokens": torch.from_numpy(np.ascontiguousarray(rows[:, :-1])),
        "targets": torch.from_numpy(np.ascontiguousarray(rows[:, 1:])),
    }
