"""The training that goes with an exported architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class TrainingTask(Protocol):
    """What is trained on and how; a search space's tasks are of this shape."""

    @property
    def data(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def evaluate(self) -> tuple[int, ...]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def optimizer(self) -> Mapping[str, Any]: ...
    @property
    def schedule(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Bytes of the standard library's sources, for an architecture that comes without a task of its own."""

    data: str = "Text"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"length": 512, "batch_size": 8})
    evaluate: tuple[int, ...] = ()
    tokens: int = 4_096_000
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"learning_rate": 1e-3})
    schedule: Mapping[str, Any] = field(default_factory=dict)
