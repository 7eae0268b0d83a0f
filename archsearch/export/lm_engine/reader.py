"""Take the keys of a foreign mapping one by one; what is left over, or says what we cannot, is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archsearch.config import Where, nearest

REQUIRED = object()


class Reader:
    """A mapping whose keys are taken by type. Every error names the file, the key's path and the value."""

    def __init__(self, values: object, where: Where) -> None:
        if not isinstance(values, Mapping):
            raise where.error(f"must be a mapping; got {values!r}")
        self.where = where
        self._values = {str(key): value for key, value in values.items()}
        self._taken: list[str] = []

    def integer(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._take(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not float(value).is_integer()
            or value < least
        ):
            raise self.error(key, f"must be a whole number of at least {least}; got {value!r}")
        return int(value)

    def optional_integer(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int | None:
        """Return the same, or None for null."""
        return None if self._take(key, default) is None else self.integer(key, default, least=least)

    def number(self, key: str, default: Any = REQUIRED, *, positive: bool = False) -> float:
        """Return a number, above 0 where it has to be."""
        value = self._take(key, default)
        if isinstance(value, str):  # YAML takes 1e-05 without a point for text
            value = _as_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or (positive and not value > 0):
            raise self.error(key, f"must be a{' positive' * positive} number; got {value!r}")
        return float(value)

    def optional_number(self, key: str, default: Any = REQUIRED) -> float | None:
        """Return the same, or None for null."""
        return None if self._take(key, default) is None else self.number(key, default)

    def boolean(self, key: str, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false; got {value!r}")
        return value

    def one_of(self, key: str, choices: Mapping[Any, Any], default: Any = REQUIRED) -> Any:
        """Return what a value stands for."""
        value = self._take(key, default)
        for choice, meaning in choices.items():
            if type(choice) is type(value) and choice == value:
                return meaning
        known = ", ".join("null" if choice is None else repr(choice) for choice in choices)
        raise self.error(key, f"must be one of {known}; got {value!r}")

    def only(self, key: str, *allowed: Any, default: Any = REQUIRED) -> None:
        """Refuse every value but those that say what our models do anyway; left out means the first."""
        value = self._take(key, allowed[0] if default is REQUIRED else default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            known = " or ".join("null" if x is None else repr(x) for x in allowed)
            raise self.error(key, f"must be {known}, as our models have nothing else; got {value!r}")

    def skip(self, *keys: str) -> None:
        """Leave out what does not describe the model."""
        self._taken += keys

    def inner(self, key: str) -> Reader:
        """Return the mapping under a key."""
        return Reader(self._take(key, REQUIRED), self.where / key)

    def list_of(self, key: str, length: int) -> list[Reader]:
        """Return the mappings in the list under a key."""
        values = self._take(key, REQUIRED)
        if not isinstance(values, list) or len(values) != length:
            got = f"{len(values)} of them" if isinstance(values, list) else repr(values)
            raise self.error(key, f"must be a list with one block per layer, {length}; got {got}")
        return [Reader(value, self.where / f"{key}[{i}]") for i, value in enumerate(values)]

    def finish(self) -> None:
        """Refuse the keys that nobody has taken."""
        for key in self._values:
            if key not in self._taken:
                known = list(dict.fromkeys(self._taken))
                raise self.error(key, f"unknown key{nearest(key, known)}; got {self._values[key]!r}")

    def error(self, key: str, rule: str) -> Exception:
        """Return the ConfigError for a key."""
        return (self.where / key).error(rule)

    def _take(self, key: str, default: Any) -> Any:
        self._taken.append(key)
        if key in self._values:
            return self._values[key]
        if default is REQUIRED:
            raise self.error(key, "is required")
        return default


def _as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
