"""A checkpoint of lm-engine: config.json and model.safetensors, and config.yml, the training config."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.export.letters import find_letters
from archsearch.export.lm_engine.config import config_text, pretrained_config
from archsearch.export.lm_engine.reading import load_config, read_config

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
TRAINING = "config.yml"
CLASS = "GPTBaseForCausalLM"


def write_lm_engine(
    architecture: Architecture,
    folder: Path,
    *,
    checkpoint: Path | None = None,
    tokenizer: Path | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Write a trained model: what lm-engine loads with its weights, and the config by which it goes on training."""
    from archsearch.export.lm_engine.weights import to_lm_engine_weights
    from archsearch.export.tensors import NAME, save_tensors
    from archsearch.training.checkpoint import check_intact, find_checkpoint, load_checkpoint, load_model

    if tokenizer is not None:
        raise ConfigError("--tokenizer: lm-engine finds one by its name in tokenizer_args; nothing is copied")
    assert checkpoint is not None  # without one there is no folder, but a file
    checkpoint = find_checkpoint(checkpoint)
    content = load_checkpoint(checkpoint, "--checkpoint")
    model = load_model(content, checkpoint, "--checkpoint")
    check_intact(content, checkpoint, "--checkpoint")
    check_same(architecture, model.architecture, checkpoint)
    architecture = model.architecture
    where = Where(f"--checkpoint: {checkpoint}")
    config = {**pretrained_config(architecture), "architectures": [CLASS]}
    text = config_text(architecture, trained=True)
    weights = to_lm_engine_weights(architecture, model.state_dict(), where)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / TRAINING).write_text(text, encoding="utf-8")
    save_tensors(folder / NAME, weights)


def read_lm_engine_folder(folder: Path) -> tuple[Architecture, dict[str, Tensor]]:
    """Return the architecture and the weights, by their names in HybridLM, of such a folder. Raises ConfigError."""
    from archsearch.export.lm_engine.weights import from_lm_engine_weights
    from archsearch.export.tensors import load_tensors

    config, training = folder / CONFIG, folder / TRAINING
    letters = find_letters(training.read_text(encoding="utf-8", errors="replace")) if training.is_file() else None
    architecture = read_config(load_config(config), letters, Where(str(config)))
    return architecture, from_lm_engine_weights(architecture, load_tensors(folder), Where(str(folder)))


def check_same(asked: Architecture, saved: Architecture, path: Path) -> None:
    """Raise ConfigError where a checkpoint is of another model; a vocabulary that was left to the data is its own."""
    vocabulary = saved.vocab_size if asked.vocab_size is None else asked.vocab_size
    if dataclasses.replace(asked, vocab_size=vocabulary).id != saved.id:
        raise ConfigError(f"--checkpoint: {path} holds another model (id {saved.id}) than the one to be exported")
