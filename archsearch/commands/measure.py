"""`archsearch measure`: training throughput of architectures, side by side."""

from __future__ import annotations

import argparse
import dataclasses
import json

from archsearch.commands.options import add_architecture_arguments, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("architectures", nargs="+", metavar="PATTERN|FILE", help="what to measure")
    parser.add_argument("--against", metavar="PATTERN|FILE", help="the anchor of every round (default: the first)")
    add_architecture_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step (8)")
    parser.add_argument("--length", type=int, default=512, help="tokens per sequence (512)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16 (fp32)")
    parser.add_argument("--time-limit", type=float, default=90.0, metavar="SECONDS", help="for all together (90)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the GPU where there is one)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure in interleaved rounds and print a row per architecture."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from archsearch.architecture import resolve
    from archsearch.config import ConfigError
    from archsearch.pattern import compact
    from archsearch.throughput.measure import Conditions, measure

    conditions = Conditions(
        batch_size=args.batch_size,
        length=args.length,
        precision=args.precision,
        time_limit=args.time_limit,
        confidence=args.confidence,
        device=args.device,
    )
    architectures = [resolve(text, args.like) for text in args.architectures]
    anchor = resolve(args.against, args.like) if args.against else architectures[0]
    try:
        results = measure(architectures, anchor, conditions)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"out of memory with {args.batch_size} x {args.length} tokens on {conditions.resolve_device()}"
        ) from None
    if args.json:
        print(json.dumps([dataclasses.asdict(result) for result in results], indent=2))
        return 0
    table = Table("pattern", box=None, pad_edge=False, header_style="bold")
    for column in ("tokens/s", "ms/step", "of anchor", f"{args.confidence:.0%} interval", "peak MiB"):
        table.add_column(column, justify="right")
    for architecture, result in zip(architectures, results, strict=True):
        table.add_row(
            compact(architecture.pattern),
            f"{result.tokens_per_second:,.0f}",
            f"{1000 * args.batch_size * args.length / result.tokens_per_second:,.1f}",
            f"{result.ratio:.3f}",
            f"{result.ratio_low:.3f} to {result.ratio_high:.3f}",
            f"{result.peak_memory_bytes / 2**20:,.0f}" if result.peak_memory_bytes else "-",
        )
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(table)
    first = results[0]
    console.print(
        f"training steps of {args.batch_size} x {args.length} tokens in {args.precision} on {first.device}; "
        f"anchor {compact(anchor.pattern)}, {first.rounds} interleaved rounds, {first.seconds:.0f} s"
    )
    return 0
