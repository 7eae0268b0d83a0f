"""Arguments that several commands share."""

from __future__ import annotations

import argparse


def add_architecture_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a PATTERN needs besides its text."""
    parser.add_argument("--like", metavar="FILE", help="take sizes and letters from this architecture's file")
    add_plugin_argument(parser)


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--plugin`, handled before the command runs."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="MODULE", help="import a module that registers mixers"
    )


def add_storage_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--storage`."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="postgresql://USER:PASSWORD@HOST/DATABASE: keep the study there, for workers on many machines (SQLite)",
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
