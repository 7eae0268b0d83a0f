"""The weights of an exported model, from a checkpoint or drawn from a seed, and their file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.model.language_model import HybridLM
from archsearch.training.checkpoint import PREFIX, check_intact, find_checkpoint, load_checkpoint

FIELD = "checkpoint"
HEAD, TIED_TO = "head.weight", "embedding.weight"


@dataclass(frozen=True)
class Weights:
    """The tensors of a HybridLM by its names, what they are weights of, and where they come from in words."""

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    origin: str

    @property
    def dtype(self) -> str:
        """The type that most of the model is kept in."""
        return str(self.tensors[TIED_TO].dtype).removeprefix("torch.")


def fresh_weights(architecture: Architecture, seed: int) -> Weights:
    """Return the weights that a new model starts with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = HybridLM(architecture)
    return Weights(architecture, model.state_dict(), f"freshly initialised, seed {seed}: not trained")


def read_weights(architecture: Architecture, path: Path) -> Weights:
    """Return a checkpoint's weights, left on disk until they are used.

    Raises ConfigError where the file is damaged, or holds another architecture or other weights than it needs.
    """
    path = find_checkpoint(path)
    checkpoint = load_checkpoint(path, FIELD)
    check_intact(checkpoint, path, FIELD)
    where = Where(f"{FIELD}: {path}")
    saved = Architecture.from_dict(checkpoint["hyper_parameters"]["architecture"], where)
    _check_same(architecture, saved, where)
    stored: dict[str, Any] = checkpoint.get("state_dict") or {}
    tensors = {name.removeprefix(PREFIX): x for name, x in stored.items() if name.startswith(PREFIX)}
    with torch.device("meta"):
        expected = HybridLM(saved).state_dict()
    for name, tensor in expected.items():
        if name not in tensors:
            raise where.error(f"lacks the weight {name}")
        if tensors[name].shape != tensor.shape:
            got = f"{list(tensors[name].shape)}, not {list(tensor.shape)}"
            raise where.error(f"the weight {name} must have the shape of its architecture; got {got}")
    if unknown := sorted(set(tensors) - set(expected)):
        raise where.error(f"holds a weight that its architecture does not have: {unknown[0]}")
    seen = checkpoint.get("tokens_seen")
    steps = f"step {checkpoint.get('global_step', 0):,}" + (f", {seen:,} tokens" if seen else "")
    return Weights(saved, tensors, f"of the checkpoint {path.name} ({steps})")


def save_weights(weights: Weights, path: Path) -> None:
    """Write one safetensors file by the names of the modelling file, straight from where the tensors lie."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise ConfigError("safetensors is not installed: pip install 'archsearch[huggingface]'") from None
    tied = weights.architecture.tie_embeddings
    tensors = {
        renamed(name): tensor.detach().contiguous()
        for name, tensor in weights.tensors.items()
        if not (tied and name == HEAD)
    }
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # which the library leaves to its owner alone


def renamed(name: str) -> str:
    """Return a weight's name in the exported model."""
    return "lm_head.weight" if name == HEAD else f"model.{name}"


def _check_same(asked: Architecture, saved: Architecture, where: Where) -> None:
    """Raise ConfigError unless a checkpoint holds the model that is asked for; how it was to start does not matter."""
    vocab_size = saved.vocab_size if asked.vocab_size is None else asked.vocab_size
    if dataclasses.replace(asked, vocab_size=vocab_size, init_std=saved.init_std).id == saved.id:
        return
    ours, theirs = asked.to_dict(), saved.to_dict()
    differing = [key for key in theirs if key != "init_std" and ours.get(key) != theirs[key]]
    key = differing[0] if differing else "mlps"
    raise where.error(
        f"must hold the architecture that is exported; its {key} is {theirs.get(key)}, not {ours.get(key)}"
    )
