"""`archsearch export`: the best architecture of a study, or a file's, written for another program."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.commands.options import add_plugin_argument
from archsearch.export import TARGETS, Target

if TYPE_CHECKING:
    from archsearch.architecture import Architecture
    from archsearch.export.task import TrainingTask

NOTE = "# note: "  # begins a line of a file that says what its program does otherwise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="STUDY|FILE", help="a study's folder, or an architecture's YAML file")
    parser.add_argument("--to", required=True, choices=TARGETS, help="the target format")
    parser.add_argument("-o", "--output", metavar="PATH", help="the file or folder to write (default: print a file)")
    parser.add_argument("--checkpoint", metavar="FILE", help="last.ckpt of a run: export its weights, too, to a folder")
    parser.add_argument("--tokenizer", metavar="PATH", help="the tokenizer that goes with the weights (huggingface)")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    add_plugin_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the export."""
    from archsearch.architecture import Architecture
    from archsearch.export.task import TextTask

    target = TARGETS[args.to]
    as_folder = target.folder is not None and (args.checkpoint is not None or target.text is None)
    _check(args, target, as_folder)
    source = Path(args.source)
    task: TrainingTask = TextTask()
    if source.is_dir():
        evidence = _evidence(source)
        source, task = _best(source)
        architecture = Architecture.load(source)
        if target.sized and architecture.vocab_size is None:
            architecture = dataclasses.replace(architecture, vocab_size=_vocabulary(task))
    else:
        evidence, architecture = None, Architecture.load(source)
    if as_folder:
        _write_folder(args, target, architecture, evidence)
    else:
        _write_text(args, target, architecture, task, _header(evidence))
    return 0


def _check(args: argparse.Namespace, target: Target, as_folder: bool) -> None:
    """Raise ConfigError for options that a target does not take, or a place that cannot be written."""
    from archsearch.commands.output import check_output
    from archsearch.config import ConfigError

    for name in ("checkpoint", "tokenizer"):
        if getattr(args, name) is not None and not as_folder:
            folders = ", ".join(name for name, other in TARGETS.items() if other.folder)
            why = f"{args.to} is written as a file without weights" if target.folder is None else "needs --checkpoint"
            raise ConfigError(f"--{name}: {why}; targets with weights: {folders}")
    if as_folder and args.output is None:
        raise ConfigError(f"-o: is required: {args.to} is written as a folder")
    if args.output is not None:
        check_output(Path(args.output), args.force, is_folder=as_folder)


def _header(evidence: Mapping[str, Any] | None) -> str:
    """Return the winner's evidence as comment lines, which every target's file takes."""
    from archsearch.search.provenance import header

    return header(evidence, evidence["winner"]) if evidence and evidence["winner"] is not None else ""


def _write_text(
    args: argparse.Namespace, target: Target, architecture: Architecture, task: TrainingTask, head: str
) -> None:
    from archsearch.commands.output import writing
    from archsearch.export import load
    from archsearch.files import write_atomic

    assert target.text is not None
    text = head + load(target.text)(architecture, task)
    if args.output is None:
        print(text, end="")
        return
    with writing(args.output):
        write_atomic(args.output, text)
    print(f"wrote {args.output}")
    for line in text.splitlines():
        if line.startswith(NOTE):
            print(f"note: {line.removeprefix(NOTE)}", file=sys.stderr)


def _write_folder(
    args: argparse.Namespace, target: Target, architecture: Architecture, evidence: Mapping[str, Any] | None
) -> None:
    from archsearch.commands.output import writing
    from archsearch.export import load
    from archsearch.files import write_folder_atomic

    assert target.folder is not None
    write = load(target.folder)
    given = {name: getattr(args, name) and Path(getattr(args, name)) for name in ("checkpoint", "tokenizer")}
    with writing(args.output):
        write_folder_atomic(args.output, lambda folder: _fill(folder, write, architecture, given, evidence))
    print(f"wrote {args.output}")
    if args.checkpoint is None:
        print("note: the weights are freshly initialised; --checkpoint exports trained ones", file=sys.stderr)


def _fill(
    folder: Path,
    write: Callable[..., None],
    architecture: Architecture,
    given: Mapping[str, Path | None],
    evidence: Mapping[str, Any] | None,
) -> None:
    """Write the model, and beside it all that the study has on record."""
    write(architecture, folder, **given, evidence=evidence)
    if evidence is not None:
        (folder / "evidence.json").write_text(json.dumps(evidence, indent=1) + "\n", encoding="utf-8")


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


def _vocabulary(task: TrainingTask) -> int:
    """Return how many tokens the data of a task have."""
    from archsearch.training.run import build_data

    vocab_size: int = build_data(task.data, task.arguments).vocab_size
    return vocab_size


def _evidence(study: Path) -> dict[str, Any] | None:
    """Return what a study has found, None where it has not ended."""
    from archsearch.config import Where

    path = study / "evidence.json"
    if not path.is_file():
        return None
    try:
        evidence: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Where(str(path)).error(f"is not valid JSON: {error}") from None
    return evidence
