"""Arguments of a data module as they are written in a file: names and types checked against its signature."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any, get_type_hints

from archsearch.config import Where, fill, nearest


def argument_names(data: type) -> list[str]:
    """Return what a data module takes."""
    return list(inspect.signature(data).parameters)


def typed_arguments(data: type, values: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Return `values` as arguments of `data`. Raises ConfigError; a misspelt name is refused with the nearest one."""
    names = argument_names(data)
    for name in values:
        if name not in names:
            raise (where / str(name)).error(f"unknown key{nearest(str(name), names)}; known: {', '.join(names)}")
    hints = get_type_hints(data.__init__)  # type: ignore[misc]
    schema = make_dataclass("Arguments", [(name, hints[name]) for name in values])
    return dict(vars(fill(schema, values, where))) if values else {}
