"""Text files and the documents in them, each in one split for ever."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HELD_OUT = 0.05  # the share of documents in each of val and test
PIECE_BYTES = 16 * 1024  # a single file is cut into documents of about this size


def walk(root: Path, glob: str, skipped: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the non-empty files under `root` whose names match; hidden and `skipped` folders are left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if fnmatch(name, glob) and not name.startswith(".") and file.is_file() and file.stat().st_size:
                yield file


def piece_bounds(content: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """Cut at the first line end after every PIECE_BYTES; text without line ends is cut there itself."""
    start, size = 0, len(content)
    while start < size:
        line_end = content.find(b"\n", start + PIECE_BYTES, start + 2 * PIECE_BYTES)
        stop = line_end + 1 if line_end >= 0 else min(size, start + PIECE_BYTES)
        yield start, stop
        start = stop


def piece_name(name: str, number: int) -> str:
    """Return the name of a piece of a file that stands alone."""
    return f"{name}#{number}"


def hash_name(name: str) -> int:
    """Return 48 bits of a document's name, which decide its split."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="replace")).digest()[:6])


def hash_numbers(name: str, count: int) -> NDArray[np.uint64]:
    """Return 48 bits for each of the `count` documents of a file that keeps no names, by splitmix64."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as it should
    x += np.uint64(hash_name(name))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(16)


def splits_of(hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the split of each document (0 train, 1 val, 2 test), from the hash of its name alone.

    Where so few documents leave val or test empty, it gets the document with the smallest hash that train can spare.
    """
    fraction = hashes / 2**48
    splits = np.where(fraction < HELD_OUT, 1, np.where(fraction < 2 * HELD_OUT, 2, 0)).astype(np.uint8)
    for split in (1, 2):
        train = np.flatnonzero(splits == 0)
        if not (splits == split).any() and len(train) > 1:
            splits[train[hashes[train].argmin()]] = split
    return splits
