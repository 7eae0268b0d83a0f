"""Read YAML that people pass around into frozen dataclasses, with errors that name file and field."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from archsearch.files import write_atomic

Schema = TypeVar("Schema")

_FACTORS = {
    "count": {"": 1, "k": 10**3, "M": 10**6, "B": 10**9},
    "seconds": {"": 1, "s": 1, "min": 60, "h": 3600},
    "bytes": {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}


class ConfigError(ValueError):
    """What a user wrote cannot be used; the message names the file, the field, the rule and the value."""


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in a configuration: its file (or other source) and the dotted key inside."""

    source: str
    key: str = ""

    def __truediv__(self, key: str) -> Where:
        return Where(self.source, f"{self.key}.{key}" if self.key and key else self.key or key)

    def __str__(self) -> str:
        return f"{self.source}: {self.key}" if self.key else self.source

    def error(self, rule: str) -> ConfigError:
        return ConfigError(f"{self}: {rule}")


def fill(schema: type[Schema], values: object, where: Where) -> Schema:
    """Return `schema` (a dataclass) filled with `values`, its types and keys checked.

    A field declared with `quantity(unit)` also takes a number with a unit (`4M`, `20min`, `72GiB`).
    Raises ConfigError.
    """
    if not isinstance(values, Mapping):
        raise where.error(f"must be a mapping of {_names(schema)}; got {_show(values)}")
    converted = _convert_quantities(schema, values, where)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(dict(converted)))
        return cast(Schema, OmegaConf.to_object(merged))
    except ConfigKeyError as error:
        raise _unknown_key(schema, error, where) from None
    except MissingMandatoryValue as error:
        raise (where / str(error.full_key)).error("is required") from None
    except OverflowError:  # a float's
        raise where.error("holds a number that is too large") from None
    except OmegaConfBaseException as error:
        rule = str(error).split("\n")[0].replace("Value ", "value ", 1)
        raise (where / str(error.full_key or "")).error(rule) from None


def quantity(unit: str, **kwargs: Any) -> Any:
    """Declare a dataclass field that is written with a unit: `count`, `seconds` or `bytes`."""
    return dataclasses.field(metadata={"unit": unit}, **kwargs)


def parse_quantity(value: object, unit: str, where: Where) -> float:
    """Return `value` (a number, or text such as `4M`, `20min`, `72GiB`) in base units."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:  # nan meets no limit
        return value
    factors = _FACTORS[unit]
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([A-Za-z]*)", str(value))
    if match is None or match[2] not in factors:
        units = ", ".join(name for name in factors if name)
        raise where.error(f"must be a number, or a number with one of the units {units}; got {_show(value)}")
    try:
        number = float(match[1]) * factors[match[2]]
    except ValueError:
        raise where.error(f"must start with a number; got {_show(value)}") from None
    return int(number) if number.is_integer() else number


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping by the safe loader; `${other.key}` is resolved, resolvers such as `oc.env` are refused."""
    where = Where(str(path))
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise where.error("no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise where.error(f"cannot be read: {error}") from None
    resolver = re.search(r"\$\{[^}]*:[^}]*\}?", text)
    if resolver:
        raise where.error(f"resolvers are not allowed in files that people share; got {resolver[0]!r}")
    try:
        loaded = OmegaConf.create(text) if text.strip() else OmegaConf.create({})
        if not isinstance(loaded, DictConfig):
            raise where.error("must hold a mapping (key: value)")
        return cast("dict[str, Any]", OmegaConf.to_container(loaded, resolve=True))
    except (YAMLError, OmegaConfBaseException) as error:
        rule = " ".join(str(error).split())
        if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark):
            rule = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        raise where.error(f"is not valid YAML: {rule}") from None


def save_yaml(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write a mapping of plain values as YAML, all or nothing."""
    write_atomic(path, OmegaConf.to_yaml(OmegaConf.create(dict(values))))


def nearest(name: str, names: list[str]) -> str:
    """Return ` (did you mean 'x'?)` for the name closest to a misspelt one, or an empty text."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _convert_quantities(schema: Any, values: Mapping[Any, Any], where: Where) -> dict[Any, Any]:
    converted = dict(values)
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        value = values.get(field.name)
        if value is None:
            continue
        place = where / field.name
        if unit := field.metadata.get("unit"):
            converted[field.name] = parse_quantity(value, unit, place)
        elif isinstance(value, list) and get_origin(hints[field.name]) is dict:  # OmegaConf would not say where
            raise place.error(f"must be a mapping; got {_show(value)}")
        elif isinstance(value, Mapping) and get_origin(hints[field.name]) is list:
            raise place.error(f"must be a list; got {_show(value)}")
        elif isinstance(value, list) and get_args(hints[field.name]) in ((int,), (float,), (str,)):
            if inside := [x for x in value if isinstance(x, list | Mapping)]:
                raise place.error(f"must list plain values; got {_show(inside[0])}")
        elif isinstance(value, Mapping):
            inner, nested = _dataclass_inside(hints[field.name])
            if inner and nested:
                converted[field.name] = {
                    key: _convert_quantities(inner, item, place / str(key)) if isinstance(item, Mapping) else item
                    for key, item in value.items()
                }
            elif inner:
                converted[field.name] = _convert_quantities(inner, value, place)
    return converted


def _dataclass_inside(hint: Any) -> tuple[Any, bool]:
    """Return the dataclass that a type hint holds, if any, and whether as the values of a dict."""
    if dataclasses.is_dataclass(hint):
        return hint, False
    if get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
        return get_args(hint)[1], True
    return next((arg for arg in get_args(hint) if dataclasses.is_dataclass(arg)), None), False


def _unknown_key(schema: Any, error: ConfigKeyError, where: Where) -> ConfigError:
    full_key = str(error.full_key)
    owner = error.object_type if dataclasses.is_dataclass(error.object_type) else schema
    names = [field.name for field in dataclasses.fields(owner)]
    key = full_key.rsplit(".", 1)[-1]
    return (where / full_key).error(f"unknown key{nearest(key, names)}; known: {', '.join(names)}")


def _names(schema: Any) -> str:
    return ", ".join(field.name for field in dataclasses.fields(schema))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
