"""flash-linear-attention: where its kernels can run, and with which tuned configurations.

Its tuner would try every configuration at the first call of a new shape, for minutes, and an untuned choice is up to
four times slower. So configurations come from `tuned/CARD.json`: the one of this very shape, else that of the nearest
shape that was tuned. `archsearch tune` adds shapes and cards.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from archsearch.kernels.dispatch import constant, why_no_triton

SHIPPED = Path(__file__).parent / "tuned"
LEAST_ON_HOPPER = (3, 7, 1)  # earlier compilers get gated chunk kernels wrong there, and fla refuses them

Key = tuple[Any, ...]


@constant
def why_unavailable() -> str | None:
    """Return why the kernels cannot run on this machine, or None."""
    return _why_unavailable()


@functools.cache
def _why_unavailable() -> str | None:
    if reason := why_no_triton():
        return reason
    if importlib.util.find_spec("fla") is None:
        return "fla-core is not installed (pip install 'archsearch[gpu]')"
    import triton

    version = tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:3])
    if torch.cuda.get_device_capability()[0] == 9 and version < LEAST_ON_HOPPER:
        return f"on Hopper its kernels need triton 3.7.1 or newer; got {triton.__version__}"
    return None


def own_folder() -> Path:
    """Return where `archsearch tune` keeps what it found on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsearch" / "tuned"


def card() -> str:
    """Return the name of this machine's GPU as a file name."""
    return re.sub(r"[^0-9A-Za-z]+", "_", torch.cuda.get_device_name())


def use_tuned() -> None:
    """Give the tuners of all fla modules that are imported their configurations; call it after the import."""
    known = _known()
    for tuner in tuners():
        if not isinstance(tuner.cache, Tuned):
            tuner.cache = Tuned(known.get(tuner.base_fn.__name__, {}))


def tuners() -> Iterator[Any]:
    """Yield the autotuners of the fla modules that are imported, each once."""
    from triton.runtime.autotuner import Autotuner

    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if not name.startswith("fla."):
            continue
        for value in list(vars(module).values()):
            while value is not None and not isinstance(value, Autotuner) and hasattr(value, "fn"):
                value = value.fn  # of @triton.heuristics around it
            if isinstance(value, Autotuner) and id(value) not in seen:
                seen.add(id(value))
                yield value


class Tuned(dict[Key, Any]):
    """A tuner's choices by key; a key that was never tuned gets the choice of the nearest one.

    Keys are sizes and flags, then the dtypes of the tensors that are there. Nearest is one of the same dtypes, or else
    of the same flags, or else any, whose sizes differ least.
    """

    def __init__(self, tuned: Mapping[Key, Any]) -> None:
        super().__init__(tuned)
        self._derived: dict[Key, Any] = {}

    def nearest(self, key: Key) -> Key | None:
        """Return the tuned key whose sizes differ least, as the sum of |log ratio|; None where nothing is tuned."""
        for kind in (_kind, _flags, len):
            alike = [known for known in self if kind(known) == kind(key)]
            if alike:
                return min(alike, key=lambda known: _distance(known, key))
        return min(self, key=lambda known: _distance(known, key), default=None)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or len(self) > 0

    def __missing__(self, key: Key) -> Any:
        if key not in self._derived:
            nearest = self.nearest(key)
            if nearest is None:
                raise KeyError(key)
            self._derived[key] = self[nearest]
        return self._derived[key]


def _kind(key: Key) -> list[Any]:
    return [type(part) if _is_size(part) else part for part in key]


def _flags(key: Key) -> list[Any]:
    return [part for part in _kind(key) if not isinstance(part, str)]


def _distance(one: Key, other: Key) -> float:
    sizes = zip(filter(_is_size, one), filter(_is_size, other), strict=False)
    return sum(abs(math.log((1 + a) / (1 + b))) for a, b in sizes)


def _is_size(part: object) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _known() -> dict[str, dict[Key, Any]]:
    """Return the tuned configurations of this card by kernel; this machine's own replace the shipped ones.

    A card that nobody tuned takes those of one with the same multiprocessors: all Hopper cards take the H200's.
    """
    from triton import Config

    shipped = SHIPPED / f"{card()}.json"
    if not shipped.exists() and torch.cuda.get_device_capability()[0] == 9:
        shipped = SHIPPED / "NVIDIA_H200.json"
    known: dict[str, dict[Key, Any]] = {}
    for path in (shipped, own_folder() / f"{card()}.json"):
        for kernel, entries in (load(path) if path.exists() else {}).items():
            for key, config in entries:
                known.setdefault(kernel, {})[tuple(key)] = Config(**config)
    return known


def load(path: Path) -> dict[str, list[tuple[list[Any], dict[str, Any]]]]:
    """Return `{kernel: [(key, configuration), ...]}` of a file that `archsearch tune` wrote. Raises ValueError."""
    try:
        kernels = json.loads(path.read_text())["kernels"]
        return {name: [(list(key), dict(config)) for key, config in entries] for name, entries in kernels.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        rule = "holds no tuned configurations; delete it, or let `archsearch tune` write it anew"
        raise ValueError(f"{path}: {rule}") from None
