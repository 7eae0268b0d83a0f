"""Text to tokens and back: by a tokenizer file of Hugging Face, or byte by byte."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError, Where, nearest
from archsearch.tokens.description import BYTES

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

USUAL_EODS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")

Decoder = Callable[[list[int], bool], str]
"""Takes the next tokens and whether they are the last, and returns the next text; keeps what is half a character."""


class Tokenizer(Protocol):
    """A vocabulary whose token `eod` stands between documents."""

    name: str
    sha256: str | None
    vocab_size: int
    eod: int
    eod_token: str | None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, without any that begin or end a document."""

    def encode_documents(self, documents: list[bytes]) -> list[NDArray[np.int64]]:
        """Return the tokens of documents in UTF-8; bytes that are not become U+FFFD where tokens are characters."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`; `eod` is none, and half characters become U+FFFD."""

    def decoder(self) -> Decoder:
        """Return a decoder of one text from its start."""


class ByteTokenizer:
    """The bytes 0 to 255, and 256 between documents."""

    name: str = BYTES
    sha256: str | None = None
    vocab_size: int = 257
    eod: int = 256
    eod_token: str | None = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="surrogateescape"))

    def encode_documents(self, documents: list[bytes]) -> list[NDArray[np.int64]]:
        return [np.frombuffer(document, dtype=np.uint8).astype(np.int64) for document in documents]

    def decode(self, tokens: Iterable[int]) -> str:
        return self.decoder()(list(tokens), True)

    def decoder(self) -> Decoder:
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        return lambda tokens, last: decode(bytes(token for token in tokens if token < 256), last)


class FileTokenizer:
    """A tokenizer.json of Hugging Face."""

    def __init__(self, path: str | Path, eod: str | int | None = None, field: str = "--tokenizer") -> None:
        """Read the file; `eod` is the token between documents, by its text or number (None: found out).

        Raises ConfigError.
        """
        self.path = Path(path)
        self.name = self.path.name
        where = Where(f"{field}: {path}")
        self._library = _load(self.path, where)
        self.sha256: str | None = hashlib.sha256(self.path.read_bytes()).hexdigest()
        self.vocab_size = max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.eod = _find_eod(self._library, self.path, where) if eod is None else _eod(self._library, eod)
        self.eod_token: str | None = self._library.id_to_token(self.eod)

    def encode(self, text: str) -> list[int]:
        return list(self._library.encode(_clean(text), add_special_tokens=False).ids)

    def encode_documents(self, documents: list[bytes]) -> list[NDArray[np.int64]]:
        texts = [document.decode("utf-8", errors="replace") for document in documents]
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, tokens: Iterable[int]) -> str:
        return self._library.decode([token for token in tokens if token != self.eod], skip_special_tokens=False)

    def decoder(self) -> Decoder:
        seen: list[int] = []
        shown = ""

        def decode(tokens: list[int], last: bool) -> str:
            nonlocal shown
            seen.extend(tokens)
            text = self.decode(seen)
            if not last:
                text = text.rstrip("\ufffd")
            new = text[len(shown) :]
            shown += new
            return new

        return decode


def _load(path: Path, where: Where) -> Library:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ConfigError("tokenizers is not installed: pip install 'archsearch[data]'") from None
    if not path.is_file():
        raise where.error("no such file")
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise where.error(f"is no tokenizer file of Hugging Face: {str(error)[:200]}") from None
    library.no_truncation()  # a file may cut and fill every text
    library.no_padding()
    return library


def _eod(library: Library, eod: str | int) -> int:
    """Return the number of a token given by its text or number."""
    number = eod if isinstance(eod, int) else library.token_to_id(eod)
    if number is None:
        known = sorted(token.content for token in library.get_added_tokens_decoder().values())
        hint = nearest(str(eod), known) or f"; special tokens: {', '.join(known) or 'none'}"
        raise ConfigError(f"--eod: must be a token of the tokenizer; got {eod!r}{hint}")
    return number


def _find_eod(library: Library, path: Path, where: Where) -> int:
    """Return the end-of-sequence token that tokenizer_config.json beside the file names, or a usual one."""
    names = [_configured_eos(path.with_name("tokenizer_config.json")), *USUAL_EODS]
    for name in names:
        number = None if name is None else library.token_to_id(name)
        if number is not None:
            return int(number)
    raise where.error(f"has no token {' or '.join(USUAL_EODS)}; say by --eod which one stands between documents")


def _configured_eos(path: Path) -> str | None:
    try:
        eos: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    eos = eos.get("content") if isinstance(eos, dict) else eos
    return eos if isinstance(eos, str) else None


def _clean(text: str) -> str:
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")
