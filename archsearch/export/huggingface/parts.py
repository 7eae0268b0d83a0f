"""The mixers and MLPs that the model of `glue` can be built of; in an exported file they are those that it needs."""

from __future__ import annotations

from typing import Any

from archsearch import mlp_registry, registry

MIXERS: dict[str, tuple[Any, Any]] = {
    name: (registry.get(name).options, registry.get(name).module) for name in registry.names()
}
MLPS: dict[str, tuple[Any, Any]] = {
    name: (mlp_registry.get(name).options, mlp_registry.get(name).module) for name in mlp_registry.names()
}
