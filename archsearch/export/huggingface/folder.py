"""Everything that belongs into a folder for transformers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archsearch import __version__
from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.export.huggingface.card import model_card
from archsearch.export.huggingface.modelling import CLASSES, NAME, modelling_file
from archsearch.export.huggingface.tokenizer import TokenizerFiles, read_tokenizer
from archsearch.export.huggingface.weights import Weights, fresh_weights, read_weights, save_weights
from archsearch.files import write_folder_atomic


def write_huggingface(
    architecture: Architecture,
    folder: Path,
    *,
    checkpoint: Path | None = None,
    tokenizer: Path | None = None,
    evidence: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Make `folder`, which `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads.

    The weights are those of a `checkpoint` of `archsearch fit` (or of its run's folder), else drawn from `seed`; a
    vocabulary that the architecture leaves open is the checkpoint's, else the tokenizer's. `tokenizer` is a
    tokenizer.json of Hugging Face, `evidence` what a study has found, for the model card. Raises ConfigError.
    """
    where = Where(str(folder))
    if folder.exists():
        raise where.error("exists already")
    files = None if tokenizer is None else read_tokenizer(tokenizer)
    if checkpoint is not None:
        weights = read_weights(architecture, checkpoint)
    else:
        weights = fresh_weights(_with_vocabulary(architecture, files), seed)
    if files is not None:
        files.check(weights.architecture)
    try:
        write_folder_atomic(folder, lambda new: _write(new, weights, files, evidence))
    except OSError as error:
        raise where.error(f"cannot be written: {error.strerror or error}") from None


def _write(
    folder: Path, weights: Weights, tokenizer: TokenizerFiles | None, evidence: Mapping[str, Any] | None
) -> None:
    folder.mkdir()
    tokens = {} if tokenizer is None else tokenizer.numbers()
    texts = {
        "config.json": _json({**_config(weights), **tokens}),
        "generation_config.json": _json({"do_sample": False, **tokens}),
        f"{NAME}.py": modelling_file(weights.architecture),
        "README.md": model_card(weights, evidence, has_tokenizer=tokenizer is not None),
        **({} if tokenizer is None else tokenizer.texts()),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    save_weights(weights, folder / "model.safetensors")


def _config(weights: Weights) -> dict[str, Any]:
    """Return config.json: what transformers wants to know, and the architecture's own fields."""
    values = weights.architecture.to_dict()
    own = {key: value for key, value in values.items() if key not in ("format", "pattern")}
    return {
        "architectures": [CLASSES["AutoModelForCausalLM"]],
        "auto_map": {name: f"{NAME}.{class_name}" for name, class_name in CLASSES.items()},
        "model_type": "archsearch",
        "archsearch_version": __version__,
        "torch_dtype": weights.dtype,
        "pattern": weights.architecture.pattern,
        **own,
        "tie_word_embeddings": weights.architecture.tie_embeddings,
    }


def _with_vocabulary(architecture: Architecture, tokenizer: TokenizerFiles | None) -> Architecture:
    """Return the architecture with the tokenizer's vocabulary where it has none."""
    if architecture.vocab_size is not None:
        return architecture
    if tokenizer is None:
        raise ConfigError("vocab_size: is required where neither a checkpoint nor a tokenizer gives it")
    return dataclasses.replace(architecture, vocab_size=tokenizer.vocab_size)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
