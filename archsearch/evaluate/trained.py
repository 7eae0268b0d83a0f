"""What a checkpoint was trained on: whose tokens it knows, and with which arguments they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archsearch.config import ConfigError
from archsearch.data.groups import multiplication_table
from archsearch.data.token_files import describe_token_files, find_token_files, find_tokenizer
from archsearch.tokens.description import BYTES
from archsearch.tokens.tokenizer import ByteTokenizer, Tokenizer

OURS = "archsearch.data."
BYTE_TOKENS = 257


@dataclass(frozen=True)
class Tokens:
    """A vocabulary: what its tokens are and how many; `key` tells vocabularies apart, None one that nobody knows.

    Models have as many tokens as their vocabulary, or more where it is `padded`: for those of files that is usual.
    """

    what: str
    size: int
    key: str | None
    padded: bool = False

    def is_same(self, other: Tokens) -> bool:
        """Return whether a model of one can read the other, as far as is known."""
        return self.size == other.size and (self.key == other.key or None in (self.key, other.key))


@dataclass(frozen=True)
class Trained:
    """The data classes of a checkpoint, each with its arguments; a mixture has several, an imported model none."""

    vocab_size: int
    parts: tuple[tuple[str, Mapping[str, Any]], ...]

    def arguments(self, data: str) -> Mapping[str, Any] | None:
        """Return the arguments of the first part of this class."""
        return next((arguments for name, arguments in self.parts if name == data), None)

    def check(self, tokens: Tokens) -> None:
        """Raise ConfigError unless the model was trained on these tokens; if nobody knows, their number has to fit."""
        if not self.parts:
            if self.vocab_size != tokens.size and not (tokens.padded and self.vocab_size > tokens.size):
                raise ConfigError(
                    f"vocabulary mismatch: its {tokens.size:,} tokens are {tokens.what}; the model has "
                    f"{self.vocab_size:,}, and its checkpoint does not say which"
                )
            return
        known = [self._tokens(name, arguments) for name, arguments in self.parts]
        if not any(tokens.is_same(own) for own in known):
            rule = f"vocabulary mismatch: its {tokens.size:,} tokens are {tokens.what}; the model was trained on "
            raise ConfigError(rule + " and ".join(dict.fromkeys(f"{own.what} ({own.size:,})" for own in known)))

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the text or bytes that the model was trained on. Raises ConfigError."""
        text = self.arguments("Text")
        if text is not None:
            found = find_tokenizer(text.get("path"), text.get("glob", "*"), text.get("eod"))
            if found is None:
                raise ConfigError(f"no tokenizer lies beside {text['path']}, which the model was trained on")
            return found
        if self.arguments("Needle") is not None:
            return ByteTokenizer()
        known = " and ".join(name for name, _ in self.parts) or "data that its checkpoint does not name"
        raise ConfigError(f"the model was trained on {known}, not on text")

    def _tokens(self, name: str, arguments: Mapping[str, Any]) -> Tokens:
        try:
            return tokens_of(name, arguments)
        except ConfigError:  # training files that have moved do not matter where their vocabulary is known
            return Tokens(f"tokens of {arguments.get('path', name)}", self.vocab_size, None)


def read_trained(checkpoint: Mapping[str, Any], vocab_size: int) -> Trained:
    """Return what a checkpoint says of its data."""
    name = str(checkpoint.get("data_class", ""))
    arguments = checkpoint.get("datamodule_hyper_parameters") or {}
    if not name:
        return Trained(vocab_size, ())
    short = name.rpartition(".")[2] if name.startswith(OURS) else name
    if short != "Mixture":
        return Trained(vocab_size, ((short, arguments),))
    shared = {key: arguments[key] for key in ("length",) if arguments.get(key) is not None}
    own = ({**shared, **part} for part in arguments["parts"].values())
    return Trained(vocab_size, tuple((part["class"], _without(part, "class", "weight")) for part in own))


def tokens_of(data: str, arguments: Mapping[str, Any]) -> Tokens:
    """Return the tokens that a data class of ours makes. Raises ConfigError."""
    if data == "StateTracking":
        group = arguments.get("group", "S3")
        return Tokens(f"the elements of {group}", len(multiplication_table(group)), group)
    if data == "Recall":
        return Tokens("keys and values", arguments.get("vocab_size", 128), "recall")
    if data == "Needle":
        return Tokens("bytes", BYTE_TOKENS, BYTES)
    if data == "Text":
        return _tokens_of_text(arguments)
    raise ConfigError(f"nobody knows the tokens of {data}")


def _tokens_of_text(arguments: Mapping[str, Any]) -> Tokens:
    path = arguments.get("path")
    files = find_token_files(path, arguments.get("glob", "*"))
    if files is None:
        return Tokens("bytes", BYTE_TOKENS, BYTES)
    given = (arguments.get(name) for name in ("dtype", "vocabulary", "eod"))
    size = describe_token_files(files, *given).vocab_size
    description = files[0].description
    if description.tokenizer == BYTES:
        return Tokens("bytes", size, BYTES)
    return Tokens(f"tokens of {description.tokenizer or path}", size, description.tokenizer_sha256, padded=True)


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}
