"""Say what is wrong with a command line or its config files in one line; the parser says it in pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from itertools import pairwise

from archsearch import data as data_modules
from archsearch.config import nearest

TRUSTED = ["archsearch", "lightning", "torch"]
_HEADERS = ("Does not validate against", "Subtypes:", "Errors:", "Problem with given class_path")


class UsageError(ValueError):
    """The command line cannot be parsed."""


def explain(message: str, argv: list[str], options: Iterable[str]) -> str:
    """Return one line about the parser's `message`; `options` are the known flags."""
    if "denied by" in message:
        path = message.split("Importing '")[-1].split("'")[0]
        return f"class_path: {path} is not allowed: it is not part of {', '.join(TRUSTED)}; --trust allows it"
    chosen = next((x.removeprefix("--data=") for x in argv if x.startswith("--data=")), None)
    if chosen and "." not in chosen and chosen not in data_modules.__all__:
        known = ", ".join(data_modules.__all__)
        return f"data: unknown {chosen!r}{nearest(chosen, data_modules.__all__)}; known: {known}"
    names = [option.removeprefix("--") for option in options]
    if match := re.match(r"unrecognized arguments: --([\w.]+)", message):
        return f"unknown flag --{match[1]}{nearest(match[1], names)}"
    if match := re.search(r"does not accept option '([^']+)'", message):
        return f"{_config_files(argv)}: unknown key {match[1]!r}{nearest(match[1], names)}"
    if message.startswith("Problems parsing config"):
        return f"{_config_files(argv)}: is not valid YAML: {_join(message.partition(':')[2])}"
    return innermost(message)


def innermost(message: str) -> str:
    """Return `key: rule` out of a nested report of the parser: the keys on the way to the first rule that failed."""
    keys: list[str] = []
    for line in message.split("\n"):
        text = line.strip().removeprefix("- ")
        if match := re.match(r'Parser key "([^"]+)":(.*)', text):
            keys.append(match[1])
            text = match[2].strip()
        if text and not text.startswith(_HEADERS):
            if match := re.match(r"Option '([^']+)' is not accepted", text):
                return f"{'.'.join([*keys, match[1]])}: unknown{_nearest_argument(message, match[1])}"
            return ": ".join([*filter(None, [".".join(keys)]), text])
    return _join(message)


def _nearest_argument(message: str, name: str) -> str:
    match = re.search(r"class_path '[\w.]*?(\w+)'", message)
    if match is None or match[1] not in data_modules.__all__:
        return ""
    known = list(inspect.signature(getattr(data_modules, match[1])).parameters)
    return f"{nearest(name, known)}; known: {', '.join(known)}"


def _config_files(argv: list[str]) -> str:
    files = [value for flag, value in pairwise(argv) if flag in ("-c", "--config")]
    files += [argument.removeprefix("--config=") for argument in argv if argument.startswith("--config=")]
    return ", ".join(files) or "config"


def _join(text: str) -> str:
    return " ".join(text.split())
