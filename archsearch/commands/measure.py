"""`archsearch measure`: throughput of architectures, side by side, and cost tables to predict it from."""

from __future__ import annotations

import argparse
import shlex
import sys

from archsearch.commands.measure_options import (
    BATCH_SIZE,
    HELD_OUT,
    LENGTH,
    PART_LIMIT,
    PRECISION,
    SEED,
    TIME_LIMIT,
    check_options,
    conditions_of,
    describe,
    target_of,
    write,
)
from archsearch.commands.measure_print import print_measured
from archsearch.commands.options import add_architecture_arguments, add_json_argument
from archsearch.commands.output import prepare_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("architectures", nargs="*", metavar="PATTERN|FILE", help="what to measure")
    parser.add_argument("--against", metavar="PATTERN|FILE", help="the anchor of every round (default: the first)")
    add_architecture_arguments(parser)
    parser.add_argument("--mode", help="train, prefill or decode (train)")
    parser.add_argument("--batch-size", type=int, help=f"sequences per step ({BATCH_SIZE})")
    parser.add_argument("--length", type=int, help=f"tokens per sequence; of the context in decoding ({LENGTH})")
    parser.add_argument("--precision", help=f"fp32, bf16 or fp16 ({PRECISION})")
    parser.add_argument("--blocks", help="how blocks run in training: eager, compile or cuda_graphs (eager)")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"for all together ({TIME_LIMIT:g}); with --table for each block or pattern ({PART_LIMIT:g})",
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="of intervals and verdicts (0.95)")
    parser.add_argument(
        "--at-least", type=float, metavar="X", help="give a verdict: X of the anchor, or above 10 X tokens/s"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the GPU where there is one)")
    parser.add_argument("--isolate", action="store_true", help="measure each in a fresh process, with its own anchor")
    parser.add_argument("--predict", metavar="TABLE", help="predict from a cost table instead of measuring")
    parser.add_argument("--output", metavar="FILE", help="write the figures as JSON; with --table the table")
    add_json_argument(parser)
    table = parser.add_argument_group("cost table of a space")
    table.add_argument("--table", metavar="SPACE.yaml", help="measure what every block of the space costs")
    table.add_argument("--held-out", type=int, metavar="N", help=f"whole patterns to correct it by ({HELD_OUT})")
    table.add_argument("--layers", type=int, metavar="N", help="measure blocks from N against 2N layers")
    table.add_argument("--check", type=int, metavar="N", help="then predict N other patterns and measure them")
    table.add_argument("--seed", type=int, help=f"of the patterns to check ({SEED})")
    table.add_argument("--stop-after", metavar="TIME", help="save and stop after this time; the same command goes on")


def run(args: argparse.Namespace) -> int:
    """Measure, predict, or make a table; 0 also where a table is not complete yet."""
    import torch

    from archsearch.commands import measure_table
    from archsearch.config import ConfigError

    if bool(args.table) == bool(args.architectures):
        raise ConfigError("measure: give PATTERN|FILE, or --table SPACE.yaml")
    check_options(args)
    try:
        if args.table:
            return measure_table.make(args)
        return measure_table.predict(args) if args.predict else _measure(args)
    except torch.OutOfMemoryError:
        conditions = conditions_of(args)
        size = f"{conditions.batch_size} x {conditions.length}"
        raise ConfigError(f"out of memory with {size} tokens on {conditions.resolve_device()}") from None


def _measure(args: argparse.Namespace) -> int:
    import dataclasses

    from archsearch.architecture import resolve
    from archsearch.throughput.isolate import measure_isolated
    from archsearch.throughput.measure import measure

    conditions = conditions_of(args)
    conditions.resolve_device()
    architectures = [resolve(text, args.like) for text in args.architectures]
    anchor = resolve(args.against, args.like) if args.against else architectures[0]
    target = target_of(args)
    if args.output:
        prepare_output(args.output)
    if args.isolate:
        results = measure_isolated(architectures, anchor, conditions, target=target, plugins=args.plugin)
    else:
        results = measure(architectures, anchor, conditions, target=target)
    figures = {
        "command": shlex.join(["archsearch", *sys.argv[1:]]),
        "conditions": dataclasses.asdict(conditions),
        "isolated": args.isolate,
        "anchor": describe(anchor),
        "at_least": args.at_least,
        "results": [{**describe(x), **result.to_plain()} for x, result in zip(architectures, results, strict=True)],
    }
    if not args.json:
        print_measured(figures, conditions)
    write(args, figures)
    return 0
