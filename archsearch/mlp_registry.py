"""The MLPs that follow the mixers in a block, by name.

Each is one file of `archsearch/model/mlp/`, or of any module imported by `--plugin MODULE`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from archsearch.config import ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn

ModuleClass = TypeVar("ModuleClass", bound="type[nn.Module]")


@dataclass(frozen=True, kw_only=True)
class MLPOptions(ABC):
    """What an MLP needs to know besides the hidden size; a subclass adds its fields. Every figure is a formula."""

    @classmethod
    def defaults(cls, hidden_size: int) -> Mapping[str, Any]:
        """Return the values of fields that depend on the hidden size and may be left out."""
        return {}

    @abstractmethod
    def check(self, hidden_size: int) -> None:
        """Raise ConfigError `field: rule; got value` where these options cannot work."""

    @abstractmethod
    def num_parameters(self, hidden_size: int) -> int:
        """Return the number of trainable parameters."""

    def active_parameters(self, hidden_size: int) -> int:
        """Return how many of them take part in the output of one token."""
        return self.num_parameters(hidden_size)

    def flops_per_token(self, hidden_size: int) -> int:
        """Return 2 x the multiply-adds of a forward pass's matrix products, per token."""
        return 2 * self.active_parameters(hidden_size)

    @abstractmethod
    def shape(self) -> str:
        """Return the sizes in short."""


@dataclass(frozen=True)
class MLPPlugin:
    """One registered MLP."""

    name: str
    options: type[MLPOptions]
    module: type[nn.Module]


_plugins: dict[str, MLPPlugin] = {}


def register_mlp(name: str, *, options: type[MLPOptions]) -> Callable[[ModuleClass], ModuleClass]:
    """Register the decorated `nn.Module` as the MLP `name`.

    The module is built as `Module(options, hidden_size)` and follows `archsearch.model.mlp.common.MLP`.
    """

    def decorate(module: ModuleClass) -> ModuleClass:
        known = _plugins.get(name)
        if known and known.module.__qualname__ != module.__qualname__:
            raise ValueError(f"MLP {name!r} is already registered by {known.module.__module__}")
        _plugins[name] = MLPPlugin(name, options, module)
        return module

    return decorate


def get(name: str) -> MLPPlugin:
    """Return the MLP registered under `name`. Raises ConfigError with the nearest name."""
    known = names()
    if name not in _plugins:
        raise ConfigError(f"unknown MLP {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return _plugins[name]


def names() -> list[str]:
    """Return the names of all MLPs, in alphabetical order."""
    _load()
    return sorted(_plugins)


@cache
def _load() -> None:
    package: Any = importlib.import_module("archsearch.model.mlp")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"archsearch.model.mlp.{found.name}")
