"""Documents of tokens in memory-mapped files; a small cache says where each is and in which split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.corpus import SPLITS, cache_root, new_cache
from archsearch.data.token_files import TokenFile, TokenFormat
from archsearch.tokens.description import beside
from archsearch.tokens.documents import hash_numbers, splits_of

FORMAT = 1
PIECE_TOKENS = 16 * 1024  # where there are too few documents for three splits, they are cut into pieces
CHUNK = 2**24  # tokens that are looked at together

Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The first token of each document in its file, and its length."""


@dataclass(frozen=True)
class TokenCorpus:
    """Documents of token files; it pickles as the folder of its cache, so worker processes map the same files."""

    folder: Path

    @cached_property
    def separator(self) -> int:
        """The token between documents, in front of each."""
        return int(self._facts["eod"])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each document, without the one that ends it."""
        lengths: NDArray[np.int64] = np.load(self.folder / "lengths.npy", mmap_mode="r")
        return lengths

    def documents(self, split: str) -> NDArray[np.int64]:
        """Return the numbers of the documents in a split."""
        return np.flatnonzero(np.load(self.folder / "splits.npy") == SPLITS.index(split))

    def read(self, document: int, first: int, last: int) -> NDArray[Any]:
        """Return tokens `first` to `last` of a document. Raises ConfigError for one beyond the vocabulary."""
        number = int(np.searchsorted(self._facts["first"], document, side="right")) - 1
        start = int(self._starts[document])
        tokens: NDArray[Any] = self._files[number][start + first : start + last]
        check_tokens(tokens, self._facts["vocab_size"], Path(self._facts["files"][number]), start + first)
        return tokens

    def __reduce__(self) -> tuple[type[TokenCorpus], tuple[Path]]:
        return TokenCorpus, (self.folder,)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return facts

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = np.load(self.folder / "starts.npy", mmap_mode="r")
        return starts

    @cached_property
    def _files(self) -> list[NDArray[Any]]:
        named = zip(self._facts["files"], self._facts["dtypes"], strict=True)
        return [TokenFile(Path(name)).tokens(dtype) for name, dtype in named]


def open_token_corpus(files: list[TokenFile], meaning: TokenFormat, cache_dir: str | None) -> TokenCorpus:
    """Return the documents of token files, found on first use. Raises ConfigError.

    A raw file is read through once for that; of a Megatron file that this program has not written, the last token of
    every document. The cache is keyed by the names, sizes and modification times of the files.
    """
    folder = cache_root(cache_dir) / f"tokens-{_key(files, meaning)}"
    if not folder.is_dir():
        _build(folder, files, meaning)
    return TokenCorpus(folder)


def check_tokens(tokens: NDArray[Any], vocab_size: int, path: Path, place: int) -> None:
    """Raise ConfigError where a token is not in the vocabulary; `place` is that of the first one in its file."""
    if tokens.size and (tokens.max() >= vocab_size or tokens.min() < 0):
        wrong = int(np.flatnonzero((tokens >= vocab_size) | (tokens < 0))[0])
        rule = f"must be from 0 to {vocab_size - 1}, below the vocabulary"
        raise ConfigError(f"{path}: token {place + wrong:,}: {rule}; got {tokens[wrong]}")


def _key(files: list[TokenFile], meaning: TokenFormat) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, meaning.vocab_size, meaning.eod, meaning.dtypes]).encode())
    for file in files:
        for ending in (".bin", ".idx", ".json", ".hashes.npy"):
            path = beside(file.path.resolve(), ending)
            status = path.stat() if path.is_file() else None
            digest.update(json.dumps([str(path), status and [status.st_size, status.st_mtime_ns]]).encode())
    return digest.hexdigest()[:16]


def _build(folder: Path, files: list[TokenFile], meaning: TokenFormat) -> None:
    bounds = [_bounds(file, dtype, meaning) for file, dtype in zip(files, meaning.dtypes, strict=True)]
    named = [_hashes(file, len(starts)) for file, (starts, _) in zip(files, bounds, strict=True)]
    if sum(int((lengths > 0).sum()) for _, lengths in bounds) < len(SPLITS) and all(x is None for x in named):
        bounds = [_cut(*x) for x in bounds]
    numbers = [
        hash_numbers(file.path.name, len(starts)) if known is None else known
        for file, known, (starts, _) in zip(files, named, bounds, strict=True)
    ]
    filled = [lengths > 0 for _, lengths in bounds]
    counts = [int(mask.sum()) for mask in filled]
    facts = {
        "eod": meaning.eod,
        "vocab_size": meaning.vocab_size,
        "dtypes": meaning.dtypes,
        "files": [str(file.path.resolve()) for file in files],
        "first": [0, *np.cumsum(counts).tolist()][:-1],
    }
    with new_cache(folder) as temporary:
        (temporary / "facts.json").write_text(json.dumps(facts))
        for name, i in (("starts", 0), ("lengths", 1)):
            np.save(temporary / f"{name}.npy", np.concatenate([x[i][m] for x, m in zip(bounds, filled, strict=True)]))
        hashes = np.concatenate([x[mask] for x, mask in zip(numbers, filled, strict=True)])
        np.save(temporary / "splits.npy", splits_of(hashes))


def _bounds(file: TokenFile, dtype: str, meaning: TokenFormat) -> Bounds:
    """Return where the documents of a file are, without the tokens that end them."""
    if not file.is_megatron:
        return _scan(file, dtype, meaning)
    starts, lengths = file.documents()
    if file.description.eod_ends_documents:
        return starts, np.maximum(lengths - 1, 0)
    tokens = file.tokens(dtype)
    for first in range(0, len(starts), CHUNK):
        part = slice(first, first + CHUNK)
        filled = lengths[part] > 0
        last = tokens[(starts[part] + lengths[part] - 1)[filled]]
        lengths[part][filled] -= last == meaning.eod
    return starts, lengths


def _scan(file: TokenFile, dtype: str, meaning: TokenFormat) -> Bounds:
    """Find the ends of the documents of a raw file."""
    tokens = file.tokens(dtype)
    ends = [np.array([-1])]
    for first, chunk in _chunks(tokens):
        check_tokens(chunk, meaning.vocab_size, file.path, first)
        ends.append(np.flatnonzero(chunk == meaning.eod) + first)
    bounds = np.concatenate([*ends, [len(tokens)]])
    return bounds[:-1] + 1, np.diff(bounds) - 1


def _chunks(tokens: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    for first in range(0, len(tokens), CHUNK):
        yield first, tokens[first : first + CHUNK]


def _hashes(file: TokenFile, count: int) -> NDArray[np.uint64] | None:
    """Return the hashes of the documents' names, which `archsearch data prepare` keeps."""
    path = beside(file.path, ".hashes.npy")
    if not path.is_file():
        return None
    try:
        hashes = np.load(path)
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if hashes.shape != (count,) or hashes.dtype != np.uint64:
        raise ConfigError(f"{path}: must hold {count} uint64 numbers; got {hashes.shape} of {hashes.dtype}")
    known: NDArray[np.uint64] = hashes
    return known


def _cut(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Bounds:
    """Cut documents into pieces of PIECE_TOKENS."""
    pieces = [np.arange(0, length, PIECE_TOKENS) for length in lengths]
    cut = [start + piece for start, piece in zip(starts, pieces, strict=True)]
    sizes = [np.minimum(PIECE_TOKENS, length - piece) for length, piece in zip(lengths, pieces, strict=True)]
    return np.concatenate(cut).astype(np.int64), np.concatenate(sizes).astype(np.int64)
