"""`archsearch data prepare`: make token files of text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from archsearch.commands.options import add_json_argument

if TYPE_CHECKING:
    from archsearch.tokens.description import Description
    from archsearch.tokens.prepare import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    commands = parser.add_subparsers(dest="data_command", metavar="COMMAND", required=True)
    text = "tokenise text and JSON Lines files into a Megatron dataset, PREFIX.bin and PREFIX.idx"
    prepare = commands.add_parser("prepare", help=text, description=text[0].upper() + text[1:] + ".")
    prepare.add_argument(
        "files",
        nargs="+",
        metavar="FILES",
        help="text files, each a document (a single one is cut at line ends), .jsonl files, and folders of these",
    )
    prepare.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json of Hugging Face (default: tokens are bytes)"
    )
    prepare.add_argument("-o", "--output", required=True, metavar="PREFIX", help="what the written files begin with")
    prepare.add_argument("--text-key", default="text", metavar="KEY", help="whose value is the text in .jsonl (text)")
    prepare.add_argument("--eod", metavar="TOKEN", help="token between documents (default: the tokenizer's own)")
    prepare.add_argument("--glob", default="*", help="which file names in folders count (*)")
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    prepare.add_argument("--workers", type=int, default=workers, metavar="N", help=f"processes ({workers})")
    prepare.add_argument("--force", action="store_true", help="replace files of other text")
    add_json_argument(prepare)


def run(args: argparse.Namespace) -> int:
    """Prepare, with a bar on stderr; the same command goes on after a kill and is done at once when finished."""
    from archsearch.tokens.prepare import Options, prepare

    options = Options(
        tokenizer=args.tokenizer,
        eod=args.eod,
        text_key=args.text_key,
        glob=args.glob,
        workers=args.workers,
        force=args.force,
    )
    with _bar() as report:
        description = prepare(args.files, args.output, options, report)
    print(json.dumps(vars(description), indent=1) if args.json else _summary(args.output, description))
    return 0


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = "tokenising", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        yield lambda progress: bar.update(task, completed=progress.done_bytes, total=progress.total_bytes)


def _summary(prefix: str, made: Description) -> str:
    assert made.documents is not None
    assert made.tokens is not None
    assert made.source_bytes is not None
    lines = [
        f"{prefix}.bin, {prefix}.idx: {made.documents:,} documents, {made.tokens:,} tokens of {made.dtype}, "
        f"{made.source_bytes / made.tokens:.2f} bytes of the files per token",
        f"vocabulary {made.vocab_size:,}, documents end with {made.eod}"
        + (f" ({made.eod_token})" if made.eod_token else ""),
    ]
    if made.not_utf8:
        lines.append(f"{made.not_utf8:,} documents are not UTF-8 throughout")
    return "\n".join([*lines, f"train on them: archsearch fit ... --data=Text --data.path={prefix}.idx"])
