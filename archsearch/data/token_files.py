"""Token files on disk - raw `.bin`, or Megatron's `.bin` and `.idx` - and what is said of them."""

from __future__ import annotations

import glob as globbing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError, Where, nearest
from archsearch.tokens.description import BYTES, Description, beside, load_description
from archsearch.tokens.documents import walk
from archsearch.tokens.megatron import Index, documents, read_index
from archsearch.tokens.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer

ENDINGS = (".bin", ".idx")
DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")


@dataclass(frozen=True)
class TokenFile:
    """A `.bin` of tokens; with `.idx` beside it, it is Megatron's."""

    path: Path

    @cached_property
    def description(self) -> Description:
        """What the JSON beside it says."""
        return load_description(beside(self.path, ".json"))

    @property
    def index_path(self) -> Path:
        return beside(self.path, ".idx")

    @property
    def is_megatron(self) -> bool:
        """Whether the `.idx` is there."""
        return self.index_path.is_file()

    def read_index(self) -> Index:
        """Return Megatron's index, which fits the `.bin`. Raises ConfigError."""
        index, size = read_index(self.index_path), self.path.stat().st_size
        if index.bin_bytes != size:
            rule = f"belongs to a .bin of {index.bin_bytes:,} bytes"
            raise Where(str(self.index_path)).error(f"{rule}; {self.path.name} has {size:,}")
        return index

    def documents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where Megatron's documents start and how long they are, in tokens."""
        return documents(self.read_index(), Where(str(self.index_path)))

    def tokens(self, dtype: str) -> NDArray[Any]:
        """Return the tokens, memory-mapped. Raises ConfigError."""
        size, itemsize = self.path.stat().st_size, np.dtype(dtype).itemsize
        if size == 0 or size % itemsize:
            rule = "is empty" if size == 0 else f"must hold tokens of {itemsize} bytes ({dtype}); got {size:,} bytes"
            raise Where(str(self.path)).error(rule)
        return np.memmap(self.path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")


@dataclass(frozen=True)
class TokenFormat:
    """What the numbers in files mean: the vocabulary, the token between documents, and the dtype of raw files."""

    vocab_size: int
    eod: int
    dtypes: tuple[str, ...]


def find_token_files(path: str | None, glob: str) -> list[TokenFile] | None:
    """Return the token files that `path` names: files, wildcards, several between commas, or a folder with a `glob`.

    None where it names text. Raises ConfigError.
    """
    if path is None:
        return None
    if Path(path).is_dir():
        found = sorted(walk(Path(path), glob)) if glob.endswith(ENDINGS) else None
    elif all(part.strip().endswith(ENDINGS) for part in path.split(",")):
        found = [Path(path)] if Path(path).exists() else [file for part in path.split(",") for file in _expand(part)]
    else:
        return None
    if found is None:
        return None
    if not found:
        raise ConfigError(f"data.path: no non-empty file that matches {glob!r} in {path}")
    for file in [x for name in found for x in (name, beside(name, ".bin"))]:
        if not file.is_file():
            raise ConfigError(f"data.path: no such file: {file}")
    return [TokenFile(file) for file in dict.fromkeys(beside(name, ".bin") for name in found)]


def describe_token_files(
    files: list[TokenFile], dtype: str | None, vocabulary: int | None, eod: int | None
) -> TokenFormat:
    """Return what arguments or, where they are None, the JSON beside each file says. Raises ConfigError."""
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(
            f"data.dtype: must be one of {', '.join(DTYPES)}; got {dtype!r}{nearest(dtype, list(DTYPES))}"
        )
    vocabularies = [_said(file, "vocabulary", "vocab_size", vocabulary) for file in files]
    eods = [_said(file, "eod", "eod", eod) for file in files]
    tokenizers = [file.description.tokenizer_sha256 for file in files]
    for what, values in (("vocabulary", vocabularies), ("eod", eods), ("tokenizer", tokenizers)):
        for file, value in zip(files, values, strict=True):
            if value != values[0]:
                one, other = f"{value} in {file.path}", f"{values[0]} in {files[0].path}"
                raise ConfigError(f"data.path: all files must have one {what}; got {one} and {other}")
    if vocabularies[0] < 1:
        raise ConfigError(f"data.vocabulary: must be at least 1; got {vocabularies[0]}")
    if not 0 <= eods[0] < vocabularies[0]:
        raise ConfigError(f"data.eod: must be from 0 to below the vocabulary {vocabularies[0]}; got {eods[0]}")
    return TokenFormat(vocabularies[0], eods[0], tuple(_dtype(file, dtype) for file in files))


def find_tokenizer(path: str | None, glob: str, eod: int | None = None) -> Tokenizer | None:
    """Return the tokenizer of the data that `path` names: that of bytes for text, None where none was kept.

    Raises ConfigError.
    """
    files = find_token_files(path, glob)
    if files is None:
        return ByteTokenizer()
    description = files[0].description
    if description.tokenizer is None:
        return None
    if description.tokenizer == BYTES:
        return ByteTokenizer()
    kept = files[0].path.with_name(Path(description.tokenizer).name)
    return FileTokenizer(kept, description.eod if eod is None else eod, "data.path") if kept.is_file() else None


def _expand(part: str) -> list[Path]:
    text = str(Path(part.strip()).expanduser())
    if Path(text).exists() or not globbing.has_magic(text):
        return [Path(text)]
    found = sorted(Path(name) for name in globbing.glob(text, recursive=True))
    if not found:
        raise ConfigError(f"data.path: no file matches {text}")
    return found


def _said(file: TokenFile, argument: str, key: str, given: int | None) -> int:
    value: int | None = getattr(file.description, key) if given is None else given
    if value is None:
        rule = f"is required for {file.path}, unless {beside(file.path, '.json').name} beside it says {key}"
        raise ConfigError(f"data.{argument}: {rule}")
    return value


def _dtype(file: TokenFile, given: str | None) -> str:
    if file.is_megatron:
        own = file.read_index().dtype.name
        if given not in (None, own):
            raise ConfigError(f"data.dtype: must be {own} as {file.index_path} says, or left out; got {given!r}")
        return own
    if file.path.stat().st_size == 0:
        raise Where(str(file.path)).error("is empty")
    dtype = file.description.dtype if given is None else given
    if dtype not in DTYPES:
        rule = f"is required for {file.path}, which has neither .idx nor .json that says it" if dtype is None else ""
        raise ConfigError(f"data.dtype: {rule or f'must be one of {DTYPES}; got {dtype!r} in {file.path}'}")
    return dtype
