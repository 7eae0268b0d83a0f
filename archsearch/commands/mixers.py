"""`archsearch mixers`: what can be composed, and which backend each has on this machine."""

from __future__ import annotations

import argparse
import json

from archsearch.commands.options import add_json_argument, add_plugin_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row per mixer and backend, with the reason where a backend is missing."""
    from rich.console import Console
    from rich.table import Table

    from archsearch import registry

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
