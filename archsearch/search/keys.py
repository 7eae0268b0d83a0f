"""Checks of names and keys that a schema cannot express."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from archsearch.config import Where, nearest


def check_keys(
    values: Mapping[str, object], known: Collection[str], where: Where, required: Collection[str] = ()
) -> None:
    """Raise ConfigError where a key is unknown (with the nearest known one) or missing."""
    for key in values:
        if key not in known:
            hint = nearest(str(key), list(known))
            raise (where / str(key)).error(f"unknown key{hint}; known: {', '.join(known)}")
    for key in required:
        if key not in values:
            raise (where / key).error("is required")


def check_name(value: object, known: Collection[str], kind: str, where: Where) -> None:
    """Raise ConfigError where `value` is none of the known names of its kind."""
    if value not in known:
        hint = nearest(str(value), list(known))
        raise where.error(f"unknown {kind} {value!r}{hint}; known: {', '.join(known)}")
