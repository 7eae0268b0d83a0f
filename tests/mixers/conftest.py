from __future__ import annotations

import sys
from pathlib import Path

import pytest

from archsearch import registry

PLUGINS = Path(__file__).parents[1] / "plugins"


@pytest.fixture
def empty_plugin_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test import the third party's package and register its mixer without other tests seeing it."""
    registry.names()
    monkeypatch.syspath_prepend(PLUGINS)
    monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))
    monkeypatch.delitem(sys.modules, "leaky_average", raising=False)


@pytest.fixture
def third_party(empty_plugin_slot: None) -> None:  # noqa: ARG001
    """Register the third party's mixer, `leaky_average`, as `--plugin leaky_average` does."""
    registry.import_plugin("leaky_average")
