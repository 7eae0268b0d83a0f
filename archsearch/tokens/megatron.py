"""The `.idx` file of Megatron's memory-mapped datasets (MMapIndexedDataset), beside a `.bin` of plain tokens.

Little-endian: magic (9 bytes), version 1 (u64), dtype code (u8), the number of sequences (u64) and of document bounds
(u64); then the length in tokens of each sequence (i32), where it starts in the `.bin` in bytes (i64), and the document
bounds (i64): document i is the sequences from bound i up to bound i + 1. Multimodal files end with a mode (i8) per
sequence, which is ignored. Source: `megatron/core/datasets/indexed_dataset.py` of Megatron-LM.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from archsearch.config import Where

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


@dataclass(frozen=True)
class Index:
    """Where each sequence and document of a `.bin` is."""

    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    pointers: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def bin_bytes(self) -> int:
        """The size of the `.bin`."""
        ends = self.pointers + self.lengths.astype(np.int64) * self.dtype.itemsize
        return int(ends.max(initial=0))


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype that Megatron takes for a vocabulary."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


def read_index(path: Path) -> Index:
    """Return the index, memory-mapped. Raises ConfigError."""
    where, size = Where(str(path)), path.stat().st_size
    if size < HEADER.size:
        raise where.error(f"is no Megatron index: must have at least {HEADER.size} bytes; got {size}")
    with open(path, "rb") as file:
        magic, version, code, sequences, bounds = HEADER.unpack(file.read(HEADER.size))
    if magic != MAGIC:
        raise where.error(f"is no Megatron index: must begin with {MAGIC!r}; got {magic!r}")
    if version != VERSION:
        raise where.error(f"version: must be {VERSION}; got {version}")
    if "int" not in CODES.get(code, ""):
        integers = ", ".join(f"{number} {name}" for number, name in CODES.items() if "int" in name)
        raise where.error(f"dtype code: must be one of {integers}; got {code}")
    expected = HEADER.size + 12 * sequences + 8 * bounds
    if size not in (expected, expected + sequences):
        raise where.error(
            f"{sequences:,} sequences and {bounds:,} document bounds need {expected:,} bytes; got {size:,}"
        )
    content = np.memmap(path, dtype=np.uint8, mode="r")
    pointers_at = HEADER.size + 4 * sequences
    bounds_at = pointers_at + 8 * sequences
    index = Index(
        dtype=np.dtype(CODES[code]).newbyteorder("<"),
        lengths=content[HEADER.size : pointers_at].view("<i4"),
        pointers=content[pointers_at:bounds_at].view("<i8"),
        bounds=content[bounds_at:expected].view("<i8"),
    )
    _check(index, where)
    return index


def documents(index: Index, where: Where) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first token of each document, counted from the start of the `.bin`, and its length in tokens."""
    itemsize = index.dtype.itemsize
    ends = index.pointers + index.lengths.astype(np.int64) * itemsize
    gaps = np.flatnonzero(index.pointers[1:] != ends[:-1]) + 1
    if inside := sorted(set(gaps.tolist()) - set(index.bounds.tolist())):
        raise where.error(f"the sequences of a document must follow one another; sequence {inside[0]} does not")
    tokens = np.concatenate([[0], np.cumsum(index.lengths, dtype=np.int64)])
    lengths: NDArray[np.int64] = np.diff(tokens[index.bounds])
    filled = np.flatnonzero(np.diff(index.bounds))
    starts = np.zeros(len(lengths), dtype=np.int64)
    starts[filled] = index.pointers[index.bounds[filled]] // itemsize
    return starts, lengths


def write_index(file: BinaryIO, dtype: np.dtype[Any], lengths: NDArray[np.int64]) -> None:
    """Write the index of documents of these lengths that lie end to end, each one sequence."""
    if lengths.max(initial=0) >= 2**31:
        raise ValueError(f"a document must have fewer than 2^31 tokens; got {lengths.max():,}")
    code = next(code for code, name in CODES.items() if name == dtype.name)
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
    file.write(lengths.astype("<i4").tobytes())
    file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8").tobytes())
    file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


def _check(index: Index, where: Where) -> None:
    itemsize, sequences = index.dtype.itemsize, len(index.lengths)
    if (index.lengths < 0).any() or (index.pointers < 0).any() or (index.pointers % itemsize != 0).any():
        raise where.error(f"lengths must be at least 0 and pointers multiples of {itemsize}, the bytes of a token")
    bounds = index.bounds
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any():
        raise where.error(f"document bounds must rise from 0 to {sequences:,}, the number of sequences")
