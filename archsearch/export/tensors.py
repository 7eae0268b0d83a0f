"""safetensors files: weights as plain data, written and read whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from archsearch.config import ConfigError, Where

NAME = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights that are spread over several files


def save_tensors(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights by name; those that share memory are written twice."""
    _library().save_file({name: weight.clone() for name, weight in weights.items()}, path, {"format": "pt"})
    path.chmod(0o644)  # the library makes files that nobody else can read


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the weights of model.safetensors, or of the files that its index names. Raises ConfigError."""
    library = _library()
    found: dict[str, Tensor] = {}
    for path in _files(folder):
        try:
            found |= library.load_file(path)
        except FileNotFoundError:
            raise Where(str(path)).error("no such file") from None
        except Exception as error:  # damaged data fails in any way
            raise Where(str(path)).error(f"is no safetensors file: {error}") from None
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return [folder / NAME]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Where(str(index)).error(f"is no index of safetensors files: {error}") from None
    for name in names:
        if Path(name).name != name:
            raise Where(str(index)).error(f"a file must lie beside it; got {name!r}")
    return [folder / name for name in names]


def _library() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ConfigError("weights of other programs need safetensors: pip install 'archsearch[lm-engine]'") from None
    return safetensors.torch
