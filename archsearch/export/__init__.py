"""Write an architecture for another program, and read it back. A target is a module here, and its entry in TARGETS."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Target:
    """What another program takes, as functions `module:name` that are imported when they are called.

    `text` takes the architecture and the task it is to be trained on, and returns a file's text. `folder` takes the
    architecture and the folder to make, and by keyword `checkpoint` and `tokenizer` (paths or None) and `evidence`
    (a study's, or None); a target with both writes the folder where a checkpoint is given. `read` takes the path of a
    file that holds `mark` and returns its architecture; `read_folder` takes a folder and returns its architecture and
    its weights by their names in HybridLM. All raise ConfigError. `sized` targets need a vocabulary: a study's winner
    that leaves it to the data comes with that of its task.
    """

    text: str | None = None
    folder: str | None = None
    read: str | None = None
    read_folder: str | None = None
    mark: str = ""
    sized: bool = False


TARGETS = {
    "yaml": Target(text="archsearch.export.yaml:to_yaml"),
    "lightning": Target(text="archsearch.export.lightning:to_lightning"),
    "lm-engine": Target(
        text="archsearch.export.lm_engine.config:to_lm_engine",
        folder="archsearch.export.lm_engine.folder:write_lm_engine",
        read="archsearch.export.lm_engine.reading:read_lm_engine",
        read_folder="archsearch.export.lm_engine.folder:read_lm_engine_folder",
        mark="sequence_mixer_blocks",
        sized=True,
    ),
    "megatron": Target(
        text="archsearch.export.megatron.arguments:to_megatron",
        read="archsearch.export.megatron.reading:read_megatron",
        mark="--hybrid-layer-pattern",
        sized=True,
    ),
    "huggingface": Target(folder="archsearch.export.huggingface:write_huggingface", sized=True),
}


def load(reference: str) -> Any:
    """Import what `module:name` stands for."""
    module, name = reference.split(":")
    return getattr(importlib.import_module(module), name)
