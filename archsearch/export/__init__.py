"""Write an architecture for another program. A target is a module here with `export`, and its line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable

from archsearch.architecture import Architecture
from archsearch.export.lightning import to_lightning
from archsearch.export.task import TrainingTask
from archsearch.export.yaml import to_yaml

TARGETS: dict[str, Callable[[Architecture, TrainingTask], str]] = {"yaml": to_yaml, "lightning": to_lightning}
"""Each takes the architecture and the task it is to be trained on, and returns the file's text."""
