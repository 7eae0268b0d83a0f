"""Documents of bytes from files, laid end to end in a memory-mapped cache, each in one split for ever."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError

FORMAT = 1
SPLITS = ("train", "val", "test")
HELD_OUT = 0.05  # the share of documents in each of val and test
PIECE_BYTES = 16 * 1024  # a single file is cut into documents of about this size


@dataclass(frozen=True)
class Corpus:
    """A cached corpus; it pickles as its folder, so worker processes map the same file."""

    folder: Path

    @cached_property
    def bytes(self) -> NDArray[np.uint8]:
        """All documents end to end."""
        return np.memmap(self.folder / "bytes.bin", dtype=np.uint8, mode="r")

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where each document starts, and the end of the last: `[documents + 1]`."""
        bounds: NDArray[np.int64] = np.load(self.folder / "bounds.npy")
        return bounds

    def documents(self, split: str) -> NDArray[np.int64]:
        """Return the numbers of the documents in a split."""
        return np.flatnonzero(np.load(self.folder / "splits.npy") == SPLITS.index(split))

    def __reduce__(self) -> tuple[type[Corpus], tuple[Path]]:
        return Corpus, (self.folder,)


def check_source(path: str | None) -> None:
    """Raise ConfigError unless `path` is an existing file or folder, or None."""
    if path is not None and not Path(path).exists():
        raise ConfigError(f"data.path: no such file or folder: {path}")


def open_corpus(path: str | None, glob: str, cache_dir: str | None) -> Corpus:
    """Return the corpus of a file or folder (None: the standard library), built on first use. Raises ConfigError.

    The cache is keyed by the names, sizes and modification times of the files, so a changed file makes a new one.
    """
    check_source(path)
    root, files = _list_files(path, glob)
    if not files:
        raise ConfigError(f"data.path: no non-empty file that matches {glob!r} in {root}")
    folder = _cache_root(cache_dir) / f"text-{_key(root, files)}"
    if not folder.is_dir():
        _build(folder, root, files)
    return Corpus(folder)


def _list_files(path: str | None, glob: str) -> tuple[Path, list[Path]]:
    if path is not None and Path(path).is_file():
        file = Path(path)
        return file.parent, [file] if file.stat().st_size else []
    root = Path(path) if path is not None else Path(sysconfig.get_paths()["stdlib"])
    skipped = () if path is not None else ("site-packages", "dist-packages", "__pycache__")
    pattern = glob if path is not None else "*.py"
    return root, sorted(_walk(root, pattern, skipped))


def _walk(root: Path, glob: str, skipped: tuple[str, ...]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if fnmatch(name, glob) and not name.startswith(".") and file.is_file() and file.stat().st_size:
                yield file


def _key(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {root.resolve()}".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()[:16]


def _cache_root(cache_dir: str | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsearch"


def _build(folder: Path, root: Path, files: list[Path]) -> None:
    """Write the cache beside its place and rename it, so that a reader never sees half of one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".text-"))
    except OSError as error:
        raise ConfigError(f"data.cache_dir: cannot be written: {error}") from None
    try:
        names, lengths = [], []
        with open(temporary / "bytes.bin", "wb") as out:
            for name, content in _documents(root, files):
                names.append(name)
                lengths.append(out.write(content))
        np.save(temporary / "bounds.npy", np.cumsum([0, *lengths]))
        np.save(temporary / "splits.npy", assign_splits(names))
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has just built the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _documents(root: Path, files: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each document: a file, or a piece of a file that stands alone."""
    for file in files:
        content = file.read_bytes()
        name = file.relative_to(root).as_posix()
        if len(files) > 1:
            yield name, content
        else:
            for i, piece in enumerate(_pieces(content)):
                yield f"{name}#{i}", piece


def _pieces(content: bytes) -> Iterator[bytes]:
    """Cut at the first line end after every PIECE_BYTES; text without line ends is cut there itself."""
    start = 0
    while start < len(content):
        line_end = content.find(b"\n", start + PIECE_BYTES, start + 2 * PIECE_BYTES)
        stop = line_end + 1 if line_end >= 0 else start + PIECE_BYTES
        yield content[start:stop]
        start = stop


def assign_splits(names: list[str]) -> NDArray[np.uint8]:
    """Return the split of each document, from the hash of its name alone.

    Where so few documents leave val or test empty, it gets the document with the smallest hash that train can spare.
    """
    hashes = np.array([int.from_bytes(hashlib.sha256(name.encode(errors="replace")).digest()[:6]) for name in names])
    fraction = hashes / 2**48
    splits = np.where(fraction < HELD_OUT, 1, np.where(fraction < 2 * HELD_OUT, 2, 0)).astype(np.uint8)
    for split in (1, 2):
        train = np.flatnonzero(splits == 0)
        if not (splits == split).any() and len(train) > 1:
            splits[train[hashes[train].argmin()]] = split
    return splits
