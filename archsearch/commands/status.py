"""`archsearch status`: what a study ran, is running and refused, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from archsearch.commands.options import add_json_argument, add_plugin_argument, add_storage_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="the study's folder, such as studies/demo")
    add_storage_argument(parser)
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print a row per trial and what is going on; changes nothing."""
    from archsearch.search.status import read_status
    from archsearch.search.summary import print_status

    status = read_status(args.study, args.storage)
    if args.json:
        print(json.dumps(status.to_dict(), indent=1))
    else:
        print_status(status)
    return 0
