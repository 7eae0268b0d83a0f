"""`archsearch import`: another program's model, read back into an architecture and, from a folder, its weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from archsearch.export import TARGETS

if TYPE_CHECKING:
    from archsearch.architecture import Architecture

LAST = "last.ckpt"  # what every command finds in a folder
FILES = [name for name, target in TARGETS.items() if target.read]
FOLDERS = [name for name, target in TARGETS.items() if target.read_folder]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="FILE|FOLDER", help="a config, or a folder with a config and weights")
    parser.add_argument(
        "-o", "--output", required=True, metavar="PATH", help="where to write architecture.yaml, or its folder"
    )
    parser.add_argument(
        "--from", dest="format", choices=FILES, help="the format (default: found by what the file holds)"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run(args: argparse.Namespace) -> int:
    """Write the architecture, or a folder with it and a checkpoint that every command takes."""
    from archsearch.commands.output import check_output, writing
    from archsearch.config import ConfigError
    from archsearch.export import load

    source, output = Path(args.source), Path(args.output)
    if not source.exists():
        raise ConfigError(f"{source}: no such file")
    check_output(output, args.force, is_folder=source.is_dir())
    if source.is_dir():
        _import_folder(source, output, args.format)
    else:
        architecture: Architecture = load(_reader(source, args.format))(source)
        with writing(output):
            architecture.save(output)
        print(_summary(architecture, output))
    return 0


def _import_folder(source: Path, output: Path, name: str | None) -> None:
    import torch

    from archsearch.commands.output import writing
    from archsearch.config import ConfigError
    from archsearch.export import load
    from archsearch.files import write_folder_atomic
    from archsearch.training.checkpoint import fresh_checkpoint

    reference = TARGETS[name or FOLDERS[0]].read_folder
    if reference is None:
        raise ConfigError(f"{source}: {name} has no folders; those that have: {', '.join(FOLDERS)}")
    architecture, weights = load(reference)(source)
    checkpoint = fresh_checkpoint(architecture, weights)

    def write(folder: Path) -> None:
        folder.mkdir()
        architecture.save(folder / "architecture.yaml")
        torch.save(checkpoint, folder / LAST)

    with writing(output):
        write_folder_atomic(output, write)
    print(_summary(architecture, output))


def _reader(source: Path, name: str | None) -> str:
    """Return the function that reads a file's format, which is found by a word that only it holds."""
    from archsearch.config import ConfigError

    if name is None:
        text = source.read_text(encoding="utf-8", errors="replace")
        found = [name for name in FILES if TARGETS[name].mark in text]
        if len(found) != 1:
            marks = ", ".join(f"{TARGETS[name].mark} ({name})" for name in FILES)
            raise ConfigError(f"{source}: must hold exactly one of {marks}; --from says which format it is")
        name = found[0]
    reference = TARGETS[name].read
    assert reference is not None
    return reference


def _summary(architecture: Architecture, output: Path) -> str:
    from archsearch.pattern import compact

    return f"wrote {output}: {compact(architecture.pattern)}, {architecture.num_parameters():,} parameters"
