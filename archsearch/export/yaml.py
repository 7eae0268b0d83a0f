"""The architecture in archsearch's own format."""

from __future__ import annotations

from omegaconf import OmegaConf

from archsearch.architecture import Architecture
from archsearch.export.task import TrainingTask


def to_yaml(architecture: Architecture, task: TrainingTask) -> str:
    """Return the YAML that every command reads back; the task has no place in it."""
    return OmegaConf.to_yaml(OmegaConf.create(architecture.to_dict()))
