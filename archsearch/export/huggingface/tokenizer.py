"""The files that a tokenizer brings into an exported folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.tokens.tokenizer import USUAL_EODS

FIELD = "tokenizer"
USUAL = {
    "bos_token": ("<|begin_of_text|>", "<s>", "<bos>", "<|bos|>", "[BOS]"),
    "eos_token": USUAL_EODS,
    "pad_token": ("<pad>", "<|pad|>", "[PAD]"),
}
"""What tokens with a part to play are called where tokenizer_config.json does not say."""
KEPT = ("chat_template", "model_max_length", "add_bos_token", "add_eos_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer.json, its vocabulary, its tokens with a part to play, and what else its settings say."""

    path: Path
    text: str
    vocabulary: Mapping[str, int]
    special: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def vocab_size(self) -> int:
        """One more than the highest token."""
        return max(self.vocabulary.values(), default=-1) + 1

    def check(self, architecture: Architecture) -> None:
        """Raise ConfigError where the model has no embedding for some token."""
        assert architecture.vocab_size is not None
        if self.vocab_size > architecture.vocab_size:
            rule = f"must have no more tokens than the model's vocabulary, {architecture.vocab_size}"
            raise Where(f"{FIELD}: {self.path}").error(f"{rule}; got {self.vocab_size}")

    def numbers(self) -> dict[str, int]:
        """Return the special tokens as a model's configuration names them, `eos_token_id` and so on."""
        return {f"{name}_id": self.vocabulary[token] for name, token in self.special.items()}

    def texts(self) -> dict[str, str]:
        """Return the files by name."""
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special,
            **self.settings,
        }
        settings_text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        return {"tokenizer.json": self.text, "tokenizer_config.json": settings_text}


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Read a tokenizer.json (or the one in a folder), and tokenizer_config.json beside it if there is one.

    Raises ConfigError.
    """
    path = path / "tokenizer.json" if path.is_dir() else path
    where = Where(f"{FIELD}: {path}")
    try:
        text = path.read_text(encoding="utf-8")
        vocabulary = _vocabulary(json.loads(text))
    except FileNotFoundError:
        raise where.error("no such file") from None
    except OSError as error:
        raise where.error(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise where.error("is no tokenizer file of Hugging Face") from None
    settings = _settings(path.with_name("tokenizer_config.json"))
    special = {}
    for name, usual in USUAL.items():
        written = settings.get(name)
        content = written.get("content") if isinstance(written, dict) else written
        if found := next((token for token in (content, *usual) if token in vocabulary), None):
            special[name] = str(found)
    kept = {key: settings[key] for key in KEPT if key in settings}
    return TokenizerFiles(path, text, vocabulary, special, kept)


def _vocabulary(values: Any) -> dict[str, int]:
    vocabulary = values["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model: pairs of a token and its score
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in values.get("added_tokens") or ()}}


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
