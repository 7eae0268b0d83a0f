"""Documents of bytes from files, laid end to end in a memory-mapped cache, each in one split for ever."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.packing import START
from archsearch.tokens.documents import hash_name, piece_bounds, piece_name, splits_of, walk

FORMAT = 1
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Corpus:
    """A cached corpus; it pickles as its folder, so worker processes map the same file."""

    folder: Path
    separator: ClassVar[int] = START

    @cached_property
    def bytes(self) -> NDArray[np.uint8]:
        """All documents end to end."""
        return np.memmap(self.folder / "bytes.bin", dtype=np.uint8, mode="r")

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where each document starts, and the end of the last: `[documents + 1]`."""
        bounds: NDArray[np.int64] = np.load(self.folder / "bounds.npy")
        return bounds

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The bytes of each document."""
        return np.diff(self.bounds)

    def read(self, document: int, first: int, last: int) -> NDArray[np.uint8]:
        """Return bytes `first` to `last` of a document."""
        start = self.bounds[document]
        return self.bytes[start + first : start + last]

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
    folder = cache_root(cache_dir) / f"text-{_key(root, files)}"
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
    return root, sorted(walk(root, pattern, skipped))


def _key(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {root.resolve()}".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()[:16]


def cache_root(cache_dir: str | None) -> Path:
    """Return where caches are kept."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsearch"


def _build(folder: Path, root: Path, files: list[Path]) -> None:
    with new_cache(folder) as temporary:
        names, lengths = [], []
        with open(temporary / "bytes.bin", "wb") as out:
            for name, content in _documents(root, files):
                names.append(name)
                lengths.append(out.write(content))
        np.save(temporary / "bounds.npy", np.cumsum([0, *lengths]))
        np.save(temporary / "splits.npy", assign_splits(names))


@contextmanager
def new_cache(folder: Path) -> Iterator[Path]:
    """Give a folder to write a cache in, and rename it to its place, so that a reader never sees half of one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".text-"))
    except OSError as error:
        raise ConfigError(f"data.cache_dir: cannot be written: {error}") from None
    try:
        yield temporary
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
            for i, (start, stop) in enumerate(piece_bounds(content)):
                yield piece_name(name, i), content[start:stop]


def assign_splits(names: list[str]) -> NDArray[np.uint8]:
    """Return the number of each document's split, from the hash of its name alone."""
    return splits_of(np.array([hash_name(name) for name in names], dtype=np.uint64))
