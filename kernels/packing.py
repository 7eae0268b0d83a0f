"""Packed documents: several sequences laid end to end in one row, `[1, T, ...]`, bounded by `cu_seqlens`.

Bounds have to be read on the CPU once: to check them, and because the longest document is the size of a tensor. A model
does it in front of its layers (`read_documents`) and hands them what it read, in a context around (`laid_out`): there
no op asks the device, and none breaks a graph of torch.compile. Outside of it every op reads its bounds itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Bounds that fit their row, and what else of them the ops need.

    Attributes:
        bounds: `[documents + 1]` int64, beside the row.
        on_cpu: The same on the CPU.
        starts: `[T]` int32, beside the row: the first step of each step's document.
        longest: The steps of the longest document, or more.
    """

    bounds: Tensor
    on_cpu: Tensor
    starts: Tensor
    longest: int


_laid_out: list[Documents] = []
"""The contexts that are open, innermost last. A plain list: torch.compile cannot trace through a ContextVar."""


def read_documents(cu_seqlens: Tensor, length: int, device: torch.device) -> Documents:
    """Return the documents of a row of `length` steps on `device`; waits for the device only if the bounds lie there.

    Raises ValueError unless `cu_seqlens` `[documents + 1]` increases from 0 to the length.
    """
    cu_seqlens = cu_seqlens.to(torch.int64)  # the kernels' configurations are tuned for it
    on_cpu = cu_seqlens.cpu()
    lengths = on_cpu.diff()
    if len(on_cpu) < 2 or on_cpu[0] != 0 or on_cpu[-1] != length or not (lengths > 0).all():
        raise ValueError(f"cu_seqlens must increase from 0 to the length {length}; got {on_cpu.tolist()}")
    bounds = cu_seqlens if cu_seqlens.device == device else to_device(on_cpu, device)
    return Documents(bounds, on_cpu, _starts(bounds, length), int(lengths.max()))


def for_graphs(documents: Documents, row: int) -> Documents:
    """Return the documents as graphs of torch.compile are to see them, or every batch would need its own.

    The longest is rounded up to a power of two, or to the `row`, the length that no document exceeds: batches of
    ordinary text then have one or two values. Graphs hold for any number of documents, if their ops allow.
    """
    from torch._dynamo import maybe_mark_dynamic  # a second of imports

    for bounds in (documents.bounds, documents.on_cpu):
        maybe_mark_dynamic(bounds, 0)
    rounded = 1 << (documents.longest - 1).bit_length()
    return documents._replace(longest=max(documents.longest, min(rounded, row)))


@contextmanager
def laid_out(documents: Documents | None) -> Iterator[None]:
    """Let the ops in this context take what is known of `documents.bounds`, where they are given those, as checked."""
    if documents is None:
        yield
        return
    _laid_out.append(documents)
    try:
        yield
    finally:
        _laid_out.pop()


@contextmanager
def stretched(cu_seqlens: Tensor | None, n: int) -> Iterator[Tensor | None]:
    """Return the bounds of the same documents with `n` steps in place of each; for use inside the context."""
    known = _known(cu_seqlens)
    if cu_seqlens is None or n == 1:
        yield cu_seqlens
    elif known is None:
        yield n * cu_seqlens
    else:
        bounds, starts = n * known.bounds, (n * known.starts).repeat_interleave(n)
        with laid_out(Documents(bounds, n * known.on_cpu, starts, n * known.longest)):
            yield bounds


def check_cu_seqlens(cu_seqlens: Tensor, x: Tensor) -> None:
    """Raise ValueError unless `cu_seqlens` (`[documents + 1]`, from 0 to T, increasing) fits `x` (`[1, T, ...]`)."""
    documents_of(cu_seqlens, x)


def documents_of(cu_seqlens: Tensor, x: Tensor) -> Documents:
    """Return the documents that `cu_seqlens` bounds in `x` `[1, T, ...]`. Raises ValueError where they do not fit."""
    if x.shape[0] != 1:
        raise ValueError(f"cu_seqlens needs a batch of one packed row; got batch size {x.shape[0]}")
    known = _known(cu_seqlens)
    if known is not None and known.starts.shape[0] == x.shape[1]:
        return known
    return read_documents(cu_seqlens, x.shape[1], x.device)


def state_shape(
    x: Tensor, cu_seqlens: Tensor | None, per_sequence: tuple[int, ...], initial_state: Tensor | None
) -> tuple[int, ...]:
    """Return the shape of the states of `x` `[B, T, ...]`, one per row or packed document. Raises ValueError."""
    sequences = x.shape[0]
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, x)
        sequences = cu_seqlens.shape[0] - 1
    shape = (sequences, *per_sequence)
    if initial_state is not None and initial_state.shape != shape:
        raise ValueError(f"initial_state must have shape {shape}; got {tuple(initial_state.shape)}")
    return shape


def pad(x: Tensor, cu_seqlens: Tensor, value: float = 0.0) -> Tensor:
    """Return packed documents `[1, T, ...]` as a batch `[documents, longest, ...]`, `value` after their ends."""
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    offsets = torch.arange(documents_of(cu_seqlens, x).longest, device=x.device)
    valid = offsets < lengths[:, None]
    batch = x[0][torch.where(valid, starts[:, None] + offsets, 0)]
    return torch.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), batch, torch.full_like(batch[:1, :1], value))


def unpad(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return a batch `[documents, longest, ...]` as packed documents `[1, T, ...]`."""
    known = _known(cu_seqlens)
    length = int(cu_seqlens[-1]) if known is None else known.starts.shape[0]
    offsets = torch.arange(length, device=x.device) - document_starts(cu_seqlens, length)
    return x[_numbers(cu_seqlens, length), offsets][None]


def document_starts(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return the first step of each step's document, `[length]` int32."""
    known = _known(cu_seqlens)
    return _starts(cu_seqlens, length) if known is None else known.starts


def last_steps(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return each document's last step `[documents, ...]` of a batch `[documents, longest, ...]`."""
    lengths = cu_seqlens.diff()
    return x[torch.arange(len(lengths), device=x.device), lengths - 1]


@lru_cache(maxsize=8)  # the layers of a model ask for the same
def chunks_of(on_cpu: Tensor, size: int, device: torch.device) -> Tensor:
    """Return the chunks of `size` steps that documents fall into, `[chunks, 2]` int64: document, place in it.

    `on_cpu` are their bounds on the CPU.
    """
    counts = -(-on_cpu.diff() // size)
    document = torch.repeat_interleave(counts)
    place = torch.arange(len(document)) - (counts.cumsum(0) - counts)[document]
    return to_device(torch.stack([document, place], dim=1), device)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on a device, without waiting for what a GPU has still to do."""
    if device.type == "cuda" and not x.is_pinned():
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def _known(cu_seqlens: Tensor | None) -> Documents | None:
    if _laid_out and _laid_out[-1].bounds is cu_seqlens:
        return _laid_out[-1]
    return None


def _starts(cu_seqlens: Tensor, length: int) -> Tensor:
    return cu_seqlens[_numbers(cu_seqlens, length)].to(torch.int32)


def _numbers(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return the number of each step's document, `[length]`."""
    steps = torch.arange(length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens, steps, right=True) - 1
