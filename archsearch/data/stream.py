"""A stream of batches in which batch i is made from its index alone, so that it can begin anywhere."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from archsearch.config import ConfigError

Batch = dict[str, Tensor]

IGNORED = -100
"""The target of a position that is not scored."""

BOUNDS = "cu_seqlens"
"""Where the documents of a packed batch begin, over its rows laid end to end, and at last their length."""

AHEAD = 2  # batches that are made while one is trained on, by the thread or by each worker


@dataclass(frozen=True, kw_only=True)
class BatchStream:
    """The batches `start()`, `start()` + 1, ... without end, shared by all ranks.

    Of `world_size` ranks, rank r takes every world_size-th batch from `start()` + r on; worker processes share a rank's
    batches in the same way, so their number changes nothing. `start` is asked at every pass.

    Batches are made ahead, while the one before is trained on: without workers by a thread, which is enough as long as
    a batch takes less time than a step (NumPy leaves the interpreter to others while it computes) and costs no memory
    and no start. Workers are for batches that are slow in Python. They do not outlive a pass: that of training has no
    end, those of evaluation are short. With `pinned`, batches lie where a GPU can fetch them while it computes.
    """

    batch_at: Callable[[int], Batch]
    start: Callable[[], int] = lambda: 0
    rank: int = 0
    world_size: int = 1
    num_workers: int = 0
    pinned: bool = False

    def __iter__(self) -> Iterator[Batch]:
        indices, batch_at = self._indices(), self._batch_at()
        if self.num_workers == 0:
            return _made_ahead(_Pinned(batch_at) if self.pinned else batch_at, iter(indices))
        workers = DataLoader(
            _InWorkers(batch_at, indices),
            batch_size=None,
            num_workers=self.num_workers,
            prefetch_factor=AHEAD,
            worker_init_fn=_ignore_interrupts,
            pin_memory=self.pinned,
            generator=torch.Generator(),  # its own: an iterator over workers draws a seed, which would move the global
        )
        return iter(workers)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: `start` knows. That the method is there tells Lightning that the stream can go on."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing back."""

    def _batch_at(self) -> Callable[[int], Batch]:
        return self.batch_at

    def _indices(self) -> count[int] | range:
        return count(self.start() + self.rank, self.world_size)


@dataclass(frozen=True, kw_only=True)
class FiniteBatchStream(BatchStream):
    """The batches from 0 up to `stop`, for evaluation; a rank that has one less than others gets one to score nothing.

    A model whose weights are spread over the ranks needs all of them at every batch.
    """

    stop: int

    def __len__(self) -> int:
        return len(self._indices())

    def _batch_at(self) -> Callable[[int], Batch]:
        return _FilledUp(self.batch_at, self.stop)

    def _indices(self) -> range:
        return range(self.rank, -(-self.stop // self.world_size) * self.world_size, self.world_size)


@dataclass(frozen=True)
class RowsOfRank:
    """A rank's share of each batch: as many rows as any other rank's. Raises ConfigError where they do not go round."""

    batch_at: Callable[[int], Batch]
    rank: int
    world_size: int

    def __call__(self, index: int) -> Batch:
        batch = self.batch_at(index)
        rows, length = batch["tokens"].shape
        each, rest = divmod(rows, self.world_size)
        if rest:
            raise ConfigError(f"data.batch_size: must be a multiple of the {self.world_size} devices; got {rows}")
        first, stop = self.rank * each, (self.rank + 1) * each
        share = {name: x[first:stop] for name, x in batch.items() if name != BOUNDS}
        if BOUNDS in batch:  # a row begins a document, so every share does
            bounds = batch[BOUNDS]
            inside = (bounds >= first * length) & (bounds <= stop * length)
            share[BOUNDS] = bounds[inside] - first * length
        return share


def _made_ahead(batch_at: Callable[[int], Batch], indices: Iterator[int]) -> Iterator[Batch]:
    """Yield the batches of `indices`; a thread makes the next `AHEAD` meanwhile, and what it raises is raised here."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        coming = deque(thread.submit(batch_at, index) for index in islice(indices, AHEAD))
        while coming:
            batch = coming.popleft().result()
            coming.extend(thread.submit(batch_at, index) for index in islice(indices, 1))
            yield batch
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _Pinned:
    """The same batches in page-locked memory."""

    batch_at: Callable[[int], Batch]

    def __call__(self, index: int) -> Batch:
        return {name: x.pin_memory() for name, x in self.batch_at(index).items()}


@dataclass(frozen=True)
class _FilledUp:
    """The batches up to `stop`, then the last one again with nothing to score."""

    batch_at: Callable[[int], Batch]
    stop: int

    def __call__(self, index: int) -> Batch:
        batch = self.batch_at(min(index, self.stop - 1))
        if index < self.stop:
            return batch
        nothing = {"targets": IGNORED, "groups": -1}
        return {name: torch.full_like(x, nothing[name]) if name in nothing else x for name, x in batch.items()}


def _ignore_interrupts(_: int) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that trains: it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _InWorkers(IterableDataset[Batch]):
    """The indices dealt out to worker processes in turn, which is the order in which their batches are taken."""

    def __init__(self, batch_at: Callable[[int], Batch], indices: count[int] | range) -> None:
        self.batch_at, self.indices = batch_at, indices

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        assert info is not None
        return map(self.batch_at, islice(self.indices, info.id, None, info.num_workers))
