"""`archsearch mixers`: what can be composed, which backend each has on this machine, and which options one takes."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
from typing import Any

from rich.markup import escape

from archsearch.commands.options import add_json_argument, add_plugin_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("mixer", nargs="?", metavar="MIXER", help="a name or a letter: its options and their defaults")
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row per mixer and backend, with the reason where a backend is missing; or one mixer's options."""
    from rich.console import Console
    from rich.table import Table

    from archsearch import registry

    if args.mixer is not None:
        return _options(args)
    plugins = [registry.get(name) for name in registry.names()]
    if args.json:
        figures = {p.name: {"letters": p.letters, "backends": dict(p.missing_backends())} for p in plugins}
        print(json.dumps(figures, indent=2))
        return 0
    table = Table("mixer", "letters", "backend", "on this machine", box=None, pad_edge=False, header_style="bold")
    for plugin in plugins:
        for i, (backend, reason) in enumerate(plugin.missing_backends().items()):
            owner = (plugin.name, plugin.letters) if i == 0 else ("", "")
            table.add_row(*owner, backend, "yes" if reason is None else f"no: {reason}")
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)
    return 0


def _options(args: argparse.Namespace) -> int:
    """Print what an architecture file may say of a mixer, with the texts of the classes that declare it."""
    from rich.console import Console
    from rich.table import Table

    from archsearch import registry

    plugin = registry.default_letters().get(args.mixer) or registry.get(args.mixer)
    fields = dataclasses.fields(plugin.options)
    if args.json:
        figures = {field.name: {"type": str(field.type), **_default(field)} for field in fields}
        print(json.dumps(figures, indent=2, default=str))
        return 0
    table = Table("option", "type", "default", box=None, pad_edge=False, header_style="bold")
    for field in fields:
        written = [json.dumps(value, default=str).strip('"') for value in _default(field).values()] or ["required"]
        table.add_row(field.name, escape(str(field.type)), *map(escape, written))
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    letters = ", ".join(plugin.letters)
    console.print(f"{plugin.name} ({letters})\n")
    declare = [x for x in plugin.options.__mro__ if "__annotations__" in vars(x)]
    for schema in declare:
        console.print(f"{inspect.getdoc(schema)}\n", markup=False)
    console.print(table)
    return 0


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return a field's `default`, nothing where it must be given."""
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory()}
    return {} if field.default is dataclasses.MISSING else {"default": field.default}
