"""The mixers that a pattern can be composed of, by name.

A mixer registers itself; nothing in the core names one. Three ways lead here: a module in `archsearch/mixers/`,
a package that declares the entry-point group `archsearch.mixers`, and any module imported by `--plugin MODULE`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from archsearch.config import ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn

ENTRY_POINTS = "archsearch.mixers"

ModuleClass = TypeVar("ModuleClass", bound="type[nn.Module]")


@dataclass(frozen=True, kw_only=True)
class MixerOptions(ABC):
    """What a mixer needs to know besides the hidden size; a subclass adds its fields.

    Every figure is a formula: nothing is built to answer it.
    """

    def check(self, hidden_size: int) -> None:  # noqa: B027 - most have nothing to refuse
        """Raise ValueError with the rule and the value where these options cannot work."""

    @abstractmethod
    def num_parameters(self, hidden_size: int) -> int:
        """Return the number of trainable parameters."""

    @abstractmethod
    def flops_per_token(self, hidden_size: int, length: int) -> float:
        """Return 2 x the multiply-adds of a forward pass's matrix products, per token, as a mean over `length`."""

    def state_size(self, hidden_size: int) -> int:
        """Return the elements of the recurrent state of one sequence, kept in at least float32."""
        return 0

    def cache_size(self, hidden_size: int, length: int) -> int:
        """Return the elements of taps, keys and values of one sequence after `length` tokens, in the model's dtype."""
        return 0

    def shape(self) -> str:
        """Return the head counts and dims that are set, in short."""
        values = asdict(self)
        shown = [f"{values[name]} {text}" for name, text in _COUNTS.items() if values.get(name) is not None]
        shown += [f"{text} {values[name]}" for name, text in _DIMS.items() if values.get(name) is not None]
        return ", ".join(shown)


_COUNTS = {
    "num_heads": "heads",
    "num_kv_heads": "kv heads",
    "num_value_heads": "value heads",
    "num_groups": "groups",
    "num_householder": "steps per token",
}
_DIMS = {
    "key_head_dim": "key",
    "value_head_dim": "value",
    "head_dim": "head dim",
    "state_dim": "state",
    "window": "window",
}


@dataclass(frozen=True)
class Plugin:
    """One registered mixer."""

    name: str
    options: type[MixerOptions]
    module: type[nn.Module]
    letters: str

    @property
    def op(self) -> str:
        """The name of its recurrence's op, as `kernels.dispatch.calls` counts it."""
        module: Any = self.module
        op: str = module.backends.op
        return op

    def missing_backends(self) -> Mapping[str, str | None]:
        """Return each backend's name with the reason why it cannot run on this machine, None where it can."""
        module: Any = self.module  # a Mixer, which the registry does not import: it would import torch
        missing: Mapping[str, str | None] = module.backends.missing()
        return missing


_plugins: dict[str, Plugin] = {}


def register(name: str, *, options: type[MixerOptions], letters: str = "") -> Callable[[ModuleClass], ModuleClass]:
    """Register the decorated `nn.Module` as the mixer `name`; each of `letters` stands for it unless rebound.

    The module is built as `Module(options, hidden_size, norm_eps=...)` and follows `archsearch.mixers.common.Mixer`.
    """

    def decorate(module: ModuleClass) -> ModuleClass:
        known = _plugins.get(name)
        if known and known.module.__qualname__ != module.__qualname__:
            raise ValueError(f"mixer {name!r} is already registered by {known.module.__module__}")
        for letter in letters:
            owner = next((plugin.name for plugin in _plugins.values() if letter in plugin.letters), name)
            if owner != name:
                raise ValueError(f"mixer {name!r}: letter {letter!r} already stands for {owner!r}")
        _plugins[name] = Plugin(name, options, module, letters)
        return module

    return decorate


def get(name: str) -> Plugin:
    """Return the mixer registered under `name`. Raises ConfigError with the nearest name."""
    known = names()
    if name not in _plugins:
        raise ConfigError(f"unknown mixer {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return _plugins[name]


def names() -> list[str]:
    """Return the names of all mixers, in alphabetical order."""
    _load()
    return sorted(_plugins)


def default_letters() -> dict[str, Plugin]:
    """Return the letters that stand for a mixer with its default options unless an architecture rebinds them."""
    return {letter: get(name) for name in names() for letter in get(name).letters}


def import_plugin(module: str) -> None:
    """Import a module of the user's that registers mixers, from what is installed or from the current folder.

    Raises ConfigError where it cannot be imported.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, so that nothing in it hides what is installed
    try:
        importlib.import_module(module)
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"--plugin {module}: cannot be imported: {error}") from None


@cache
def _load() -> None:
    package: Any = importlib.import_module("archsearch.mixers")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"archsearch.mixers.{found.name}")
    for entry_point in entry_points(group=ENTRY_POINTS):
        entry_point.load()
