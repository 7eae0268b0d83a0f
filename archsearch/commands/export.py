"""`archsearch export`: the best architecture of a study, or a file's, written for another program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from archsearch.commands.options import add_plugin_argument

if TYPE_CHECKING:
    from archsearch.export.task import TrainingTask

NAMES = ("yaml", "lightning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="STUDY|FILE", help="a study's folder, or an architecture's YAML file")
    parser.add_argument("--to", required=True, choices=NAMES, help="the target format")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write (default: print)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_plugin_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the export."""
    from archsearch.architecture import Architecture
    from archsearch.config import ConfigError
    from archsearch.export import TARGETS
    from archsearch.export.task import TextTask
    from archsearch.files import write_atomic

    source = Path(args.source)
    task: TrainingTask = TextTask()
    if args.output and Path(args.output).exists() and not args.force:
        raise ConfigError(f"{args.output}: exists already; --force replaces it")
    if source.is_dir():
        source, task = _best(source)
    architecture = Architecture.load(source)
    text = TARGETS[args.to](architecture, task)
    if args.output is None:
        print(text, end="")
    else:
        write_atomic(args.output, text)
        print(f"wrote {args.output}")
    return 0


def _best(study: Path) -> tuple[Path, TrainingTask]:
    """Return the file of a study's winner, and the task that it won."""
    from archsearch.config import ConfigError
    from archsearch.search.space import load_space

    best = study / "best" / "architecture.yaml"
    if not best.is_file():
        why = (
            "holds no winner yet; run archsearch search to its end"
            if (study / "space.yaml").is_file()
            else "is no study"
        )
        raise ConfigError(f"{study}: {why}")
    space = load_space(study / "space.yaml")
    return best, space.tasks[space.objectives[0].task]
