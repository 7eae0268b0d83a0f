"""`archsearch evaluate`: what a checkpoint can do, with intervals."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.commands.options import add_json_argument, add_plugin_argument

if TYPE_CHECKING:
    from archsearch.evaluate.suites import Asked
    from archsearch.evaluate.tally import Figure
    from archsearch.evaluate.trained import Trained
    from archsearch.model.language_model import HybridLM
    from archsearch.tokens.tokenizer import Tokenizer

FIELD = "CHECKPOINT"
HARNESS = "lm_eval:"
NEEDS = {  # options that would be ignored without a task of theirs
    "pairs": ("recall",),
    "data.path": ("perplexity", "needle"),
    "data.glob": ("perplexity", "needle"),
    "data.group": ("state_tracking",),
    "data.haystack": ("needle",),
    "include-path": (HARNESS,),
    "num-fewshot": (HARNESS,),
    "tokenizer": (HARNESS,),
}
WIDTH = 120  # of the table where it is not shown on a terminal
OVERRIDES = {  # options that replace an argument of the checkpoint's data
    "path": "text or token files: of perplexity, and of a haystack of text",
    "glob": "which file names in a folder count, such as *.py",
    "group": "of state tracking: S3, A5, Z60",
    "haystack": "of needles: noise or text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "checkpoint", metavar=FIELD, help="last.ckpt of a run of archsearch fit, the run's folder, or an imported one"
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        required=True,
        metavar="TASK",
        help="state_tracking, recall, needle, needle_multi, needle_query, needle_value, perplexity, or lm_eval:NAME",
    )
    parser.add_argument(
        "--lengths", type=_numbers, default=(), metavar="N,N", help="of rows (that of training, and 4 x)"
    )
    parser.add_argument("--pairs", type=_numbers, default=(), metavar="N,N", help="of recall (as in training, and 4 x)")
    parser.add_argument(
        "--rows", type=int, metavar="N", help="per task and length (256); of lm_eval tasks documents (all)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="rows at once (as memory allows, 32 at most)")
    parser.add_argument("--seed", type=int, default=0, help="of the rows (0)")
    for name, text in OVERRIDES.items():
        parser.add_argument(f"--data.{name}", dest=f"data_{name}", metavar=name.upper(), help=text)
    parser.add_argument("--include-path", metavar="DIR", help="a folder with lm_eval tasks of your own, in YAML")
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples in lm_eval prompts (the task's own)")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json for lm_eval (default: that of training)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--force", action="store_true", help="replace that file")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the GPU where there is one)")
    parser.add_argument("--precision", default="fp32", help="of weights and states: fp32, bf16 or fp16 (fp32)")
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print every figure with its 95 % interval; nothing is computed before all arguments are known to be right."""
    import torch

    from archsearch.commands.output import check_output, writing
    from archsearch.config import ConfigError
    from archsearch.evaluate.intervals import CONFIDENCE
    from archsearch.evaluate.trained import read_trained
    from archsearch.files import write_atomic
    from archsearch.pattern import compact
    from archsearch.throughput.conditions import PRECISIONS, Conditions, describe_device
    from archsearch.training.checkpoint import find_checkpoint, load_checkpoint, load_model

    if args.batch_size is not None and args.batch_size < 1:
        raise ConfigError(f"--batch-size: must be at least 1; got {args.batch_size}")
    if args.output is not None:
        check_output(Path(args.output), args.force, is_folder=False)
    device = Conditions(precision=args.precision, device=args.device).resolve_device()
    names, asked = _names(args), _asked(args)
    path = find_checkpoint(args.checkpoint)
    checkpoint = load_checkpoint(path, FIELD)
    model = load_model(checkpoint, path, FIELD).to(device, PRECISIONS[args.precision] or torch.float32).eval()
    trained = read_trained(checkpoint, model.embedding.num_embeddings)
    figures = _evaluate(args, names, asked, model, trained)
    found = {
        "checkpoint": str(path),
        "pattern": compact(model.architecture.pattern),
        "device": describe_device(device),
        "precision": args.precision,
        "seed": args.seed,
        "confidence": CONFIDENCE,
        "figures": figures,
    }
    text = json.dumps(found, indent=1)
    if args.output is not None:
        with writing(args.output):
            write_atomic(args.output, text + "\n")
    if args.json:
        print(text)
    else:
        _print(found)
    return 0


def _names(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return our tasks and the harness's. Raises ConfigError."""
    from archsearch.config import ConfigError
    from archsearch.evaluate.suites import check_names

    for option, tasks in NEEDS.items():
        value = getattr(args, option.replace(".", "_").replace("-", "_"))
        if value not in (None, ()) and not any(name.startswith(tasks) for name in args.tasks):
            rule = f"is for {' and '.join(tasks)} tasks alone"
            raise ConfigError(f"--{option}: {rule}; got --tasks {' '.join(args.tasks)}")
    harness = [name.removeprefix(HARNESS) for name in args.tasks if name.startswith(HARNESS)]
    own = [name for name in args.tasks if not name.startswith(HARNESS)]
    check_names(own, others=(f"{HARNESS}NAME",))
    return list(dict.fromkeys(own)), list(dict.fromkeys(harness))


def _asked(args: argparse.Namespace) -> Asked:
    from archsearch.evaluate.suites import Asked

    rows = {} if args.rows is None else {"rows": args.rows}
    given = {name: getattr(args, f"data_{name}") for name in OVERRIDES}
    data = {name: value for name, value in given.items() if value is not None}
    return Asked(lengths=args.lengths, pairs=args.pairs, seed=args.seed, data=data, **rows)


def _evaluate(
    args: argparse.Namespace, names: tuple[list[str], list[str]], asked: Asked, model: HybridLM, trained: Trained
) -> list[dict[str, Any]]:
    from rich.console import Console

    from archsearch.evaluate.measure import measure
    from archsearch.evaluate.suites import cases

    own, harness = names
    console = Console(stderr=True)
    planned = [case for task in own for case in cases(task, trained, asked)]
    evaluate_harness = _harness(args, harness, model, trained) if harness else None
    figures = []
    for case in planned:
        with console.status(f"{case.task}: {case.rows} rows of {case.length} tokens"):
            place = {"task": case.task, "length": case.length, "variant": case.variant}
            figures += [_plain(place, case.source.unit, figure) for figure in measure(model, case, args.batch_size)]
    if evaluate_harness is not None:
        found = evaluate_harness()
        figures += [
            _plain({"task": HARNESS + task, "length": None, "variant": ""}, "documents", f) for task, f in found
        ]
    return figures


def _harness(args: argparse.Namespace, names: list[str], model: HybridLM, trained: Trained) -> Any:
    """Return what evaluates the harness's tasks, or raise ConfigError where that cannot be."""
    from archsearch.config import ConfigError

    try:
        from archsearch.evaluate.harness import HarnessModel, evaluate
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise ConfigError("lm-evaluation-harness is not installed: pip install 'archsearch[lm-eval]'") from None
    adapter = HarnessModel(model, _tokenizer(args, model, trained), args.batch_size, args.seed)
    limits = {"include_path": args.include_path, "limit": args.rows, "num_fewshot": args.num_fewshot}
    return lambda: evaluate(adapter, names, **limits)


def _tokenizer(args: argparse.Namespace, model: HybridLM, trained: Trained) -> Tokenizer:
    """Return the tokenizer that was given, else that of training. Raises ConfigError."""
    from archsearch.config import ConfigError
    from archsearch.tokens.tokenizer import FileTokenizer

    known = model.embedding.num_embeddings
    if args.tokenizer is None:
        try:
            tokenizer = trained.tokenizer()
        except ConfigError as error:
            raise ConfigError(f"lm_eval: {error}; say by --tokenizer FILE which text its tokens are") from None
    else:
        tokenizer = FileTokenizer(args.tokenizer)
    if tokenizer.vocab_size > known:
        rule = f"vocabulary mismatch: {tokenizer.name} has {tokenizer.vocab_size:,} tokens; the model has {known:,}"
        raise ConfigError(f"lm_eval: {rule}")
    return tokenizer


def _plain(place: dict[str, Any], unit: str, figure: Figure) -> dict[str, Any]:
    value, low, high = figure.estimate
    found = {"metric": figure.metric, "value": value, "low": low, "high": high}
    return {**place, "part": figure.part, **found, "count": figure.count, "unit": unit}


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{found['pattern']}, {found['precision']} on {found['device']}, rows of seed {found['seed']}"
    table = Table("task", "length", "part", title=title, title_justify="left", box=None, pad_edge=False)
    table.header_style = "bold"
    for name, justify in (("metric", "left"), ("value", "right"), ("95 % interval", "right"), ("of", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in found["figures"]:
        part = " ".join(filter(None, (row["variant"], row["part"])))
        interval = "-" if row["low"] is None else f"{_short(row['low'])} to {_short(row['high'])}"
        length = "" if row["length"] is None else f"{row['length']:,}"
        drawn = f"{row['count']:,} {row['unit']}"
        table.add_row(row["task"], length, part, row["metric"], _short(row["value"]), interval, drawn)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print("intervals are over rows or documents, which were drawn; the tokens in one are not independent")


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers between commas; got {text!r}") from None
