"""Read what `archsearch fit` saved, as plain data that runs no code."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.model.language_model import HybridLM
from archsearch.training.step import OptimizerOptions, ScheduleOptions

PREFIX = "model."  # of the weights: LanguageModel keeps its HybridLM under this name


def load_checkpoint(path: str | Path, field: str = "ckpt_path") -> dict[str, Any]:
    """Return a checkpoint's content, plain data with floating weights. Raises ConfigError that names `field`."""
    if not Path(path).is_file():
        raise ConfigError(f"{field}: no such file: {path}")
    try:
        checkpoint = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:  # damaged data makes the unpickler fail in any way
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{field}: {path} is no checkpoint of plain tensors and values: {reason}") from None
    options = checkpoint.get("hyper_parameters") if isinstance(checkpoint, dict) else None
    if not isinstance(options, dict) or "architecture" not in options:
        raise ConfigError(f"{field}: {path} is no checkpoint of this program")
    weights = checkpoint.get("state_dict") or {}
    if not isinstance(weights, dict) or not all(isinstance(x, Tensor) for x in weights.values()):
        raise ConfigError(f"{field}: {path}: state_dict: must be a mapping of tensors")
    for name, weight in weights.items():
        if str(name).startswith(PREFIX) and not weight.is_floating_point():
            raise ConfigError(f"{field}: {path}: {name}: must be floating-point numbers; holds {weight.dtype}")
    content: dict[str, Any] = checkpoint
    return content


def check_intact(checkpoint: dict[str, Any], path: str | Path, field: str) -> None:
    """Raise ConfigError where a part of a checkpoint is not what was written, or weights are not finite.

    Loading looks at no checksum.
    """
    with zipfile.ZipFile(path) as file:
        if (damaged := file.testzip()) is not None:
            raise ConfigError(f"{field}: {path} is damaged: the checksum of {damaged} in it is wrong")
    for name, weight in (checkpoint.get("state_dict") or {}).items():
        if not weight.isfinite().all():
            raise ConfigError(f"{field}: {path}: {name}: must be finite; holds NaN or infinity")


def load_model(checkpoint: dict[str, Any], path: str | Path, field: str = "ckpt_path") -> HybridLM:
    """Return the model of a checkpoint with its weights. Raises ConfigError that names `field` and the file."""
    where = Where(f"{field}: {path}")
    model = HybridLM(Architecture.from_dict(checkpoint["hyper_parameters"]["architecture"], where))
    saved: dict[str, Any] = checkpoint.get("state_dict") or {}
    weights = {name.removeprefix(PREFIX): x for name, x in saved.items() if name.startswith(PREFIX)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[1].split()) if "\n" in str(error) else str(error)
        raise where.error(f"holds other weights than its architecture has: {reason[:200]}") from None
    return model


def fresh_checkpoint(architecture: Architecture, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a checkpoint with `weights` of HybridLM from which `archsearch fit` starts at step 0.

    Optimizer and schedule are the default ones and remember nothing.
    """
    return {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": importlib.metadata.version("lightning"),
        "state_dict": {PREFIX + name: weight for name, weight in weights.items()},
        "optimizer_states": [],
        "lr_schedulers": [],
        "hyper_parameters": {
            "architecture": architecture.to_dict(),
            "optimizer": dataclasses.asdict(OptimizerOptions()),
            "schedule": dataclasses.asdict(ScheduleOptions()),
        },
        "tokens_seen": 0,
    }


def find_checkpoint(path: str | Path) -> Path:
    """Return `path`, or where it is the folder of a run (`lightning_logs/version_0`) its last.ckpt."""
    inside = (Path(path, name) for name in ("last.ckpt", "checkpoints/last.ckpt"))
    return next((file for file in inside if file.is_file()), Path(path))
