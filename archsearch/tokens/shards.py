"""Text files cut into shards of about equal size, each of which becomes tokens on its own."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError, Where
from archsearch.tokens.documents import hash_name, piece_bounds, piece_name
from archsearch.tokens.tokenizer import Tokenizer

Document = tuple[str, bytes]
"""The name of a document, whose hash puts it into a split, and its text in UTF-8."""

BATCH_BYTES = 2**20  # text that the tokenizer takes at once
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")


@dataclass(frozen=True)
class Source:
    """A text file, and the name that its documents have in common."""

    path: Path
    name: str

    @property
    def is_json_lines(self) -> bool:
        """Whether every line is a JSON object."""
        return self.path.suffix in JSON_LINES


@dataclass(frozen=True)
class Files:
    """Whole files, each a document."""

    sources: tuple[Source, ...]
    size: int

    def documents(self) -> Iterator[Document]:
        for source in self.sources:
            yield source.name, source.path.read_bytes()


@dataclass(frozen=True)
class Pieces:
    """A part of a file that stands alone, cut into documents; `first` is the number of its first piece."""

    source: Source
    start: int
    size: int
    first: int

    def documents(self) -> Iterator[Document]:
        with open(self.source.path, "rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        for i, (start, stop) in enumerate(piece_bounds(content)):
            yield piece_name(self.source.name, self.first + i), content[start:stop]


@dataclass(frozen=True)
class Lines:
    """The lines of a JSON Lines file that begin in a range of bytes; a document is called by where its line begins."""

    source: Source
    start: int
    size: int
    text_key: str

    def documents(self) -> Iterator[Document]:
        with open(self.source.path, "rb") as file:
            file.seek(max(0, self.start - 1))
            if self.start:
                file.readline()  # the rest of a line that the shard before takes
            while (place := file.tell()) < self.start + self.size and (line := file.readline()):
                if line.strip():
                    yield piece_name(self.source.name, place), self._text(line, place)

    def _text(self, line: bytes, place: int) -> bytes:
        try:
            values: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._where(place).error(f"is not valid JSON: {error}") from None
        if not isinstance(values, dict) or self.text_key not in values:
            got = f"the keys {', '.join(values)}" if isinstance(values, dict) else type(values).__name__
            raise self._where(place).error(f"must be an object with the key {self.text_key!r} (--text-key); got {got}")
        text = values[self.text_key]
        if not isinstance(text, str):
            raise self._where(place).error(f"{self.text_key}: must be text; got {type(text).__name__}")
        return text.encode("utf-8", errors="replace")

    def _where(self, place: int) -> Where:
        """Return the line's number, which is not known before someone asks."""
        number = 1
        with open(self.source.path, "rb") as file:
            while place > 0:
                part = file.read(min(place, 2**24))
                number, place = number + part.count(b"\n"), place - len(part)
        return Where(f"{self.source.path}: line {number}")


Shard = Files | Pieces | Lines


def plan(sources: list[Source], text_key: str, shard_bytes: int) -> list[Shard]:
    """Cut the sources into shards; their documents in order are the same whatever `shard_bytes`."""
    lonely = len(sources) == 1
    shards: list[Shard] = []
    group: list[Source] = []
    size = 0
    for source in sources:
        own = source.path.stat().st_size
        if group and (source.is_json_lines or size + own > shard_bytes):
            shards.append(Files(tuple(group), size))
            group, size = [], 0
        if source.is_json_lines:
            parts = range(0, own, shard_bytes)
            shards += [Lines(source, start, min(shard_bytes, own - start), text_key) for start in parts]
        elif lonely:
            shards += _cut(source, shard_bytes)
        else:
            group, size = [*group, source], size + own
    return [*shards, Files(tuple(group), size)] if group else shards


def write_shard(shard: Shard, tokenizer: Tokenizer, dtype: np.dtype[Any], target: Path) -> None:
    """Write the tokens of a shard's documents, each with its end, all or nothing: `tokens`, `lengths`, `hashes`."""
    tokens: list[NDArray[Any]] = []
    lengths: list[int] = []
    hashes: list[int] = []
    not_utf8 = 0
    for batch in _batches(shard.documents()):
        for (name, content), ids in zip(batch, tokenizer.encode_documents([text for _, text in batch]), strict=True):
            not_utf8 += not _is_utf8(content)
            if len(ids):
                tokens += [ids.astype(dtype), np.array([tokenizer.eod], dtype=dtype)]
                lengths.append(len(ids) + 1)
                hashes.append(hash_name(name))
    arrays = {
        "tokens": np.concatenate(tokens) if tokens else np.zeros(0, dtype=dtype),
        "lengths": np.array(lengths, dtype=np.int64),
        "hashes": np.array(hashes, dtype=np.uint64),
        "not_utf8": np.array(not_utf8),
    }
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".shard-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_readable(source: Source) -> None:
    """Raise ConfigError where a file is compressed."""
    if source.path.suffix in COMPRESSED:
        raise ConfigError(f"{source.path}: must be text or JSON Lines; unpack it first")


def _cut(source: Source, shard_bytes: int) -> Iterator[Pieces]:
    with open(source.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start, first = 0, 0
        for number, (_, stop) in enumerate(piece_bounds(content)):
            if stop - start >= shard_bytes or stop == len(content):
                yield Pieces(source, start, stop - start, first)
                start, first = stop, number + 1


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document[1])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
