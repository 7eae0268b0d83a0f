"""`archsearch measure --table` and `--predict`: make a space's cost table, and ask one."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from archsearch.commands.measure_options import (
    HELD_OUT,
    MODE,
    PART_LIMIT,
    SEED,
    SETTINGS,
    conditions_of,
    describe,
    target_of,
    write,
)
from archsearch.commands.measure_print import describe_table, print_predicted
from archsearch.commands.output import prepare_output

if TYPE_CHECKING:
    from archsearch.architecture import Architecture


def make(args: argparse.Namespace) -> int:
    """Make the table of a space, or go on with it, and check it where that is asked for."""
    import math
    import time
    from pathlib import Path

    from archsearch.config import Where, parse_quantity
    from archsearch.search import make_table
    from archsearch.search.cost_tables import default_path
    from archsearch.search.space import load_space
    from archsearch.throughput.machine import key_of_this_machine
    from archsearch.throughput.predict import residual_figures

    until = math.inf
    if args.stop_after is not None:
        until = time.monotonic() + parse_quantity(args.stop_after, "seconds", Where("--stop-after"))
    space = load_space(args.table)
    mode = args.mode or MODE
    of_space = {name: space.budget.conditions(mode)[name] for name in SETTINGS}
    conditions = conditions_of(args, of_space)
    path = Path(args.output) if args.output else default_path(args.table, key_of_this_machine(conditions))
    prepare_output(path)

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    command = shlex.join(["archsearch", *sys.argv[1:]])
    tabulator = make_table.open_table(
        space,
        path,
        conditions,
        say=say,
        until=until,
        limit=args.time_limit or PART_LIMIT,
        command=command,
        layers=args.layers,
    )
    say(f"{path}: {conditions.describe()} on {tabulator.table.key.card}, {tabulator.table.layers} layers against twice")
    complete = make_table.fill(tabulator, space, HELD_OUT if args.held_out is None else args.held_out)
    figures: dict[str, Any] = {"table": str(path), "residuals": residual_figures(tabulator.table)}
    if complete and args.check:
        seed = SEED if args.seed is None else args.seed
        checked = path.parent / "checks" / f"{path.stem}.seed{seed}.json"  # apart: beside a space are its tables
        figures["check"] = {"file": str(checked), **make_table.check(tabulator, space, args.check, seed, checked)}
        complete = figures["check"]["complete"]
    figures["complete"] = complete
    if args.json:
        print(json.dumps(figures, indent=1))
    else:
        say("\n".join(describe_table(str(path), figures)))
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict from a table, of whatever machine; beside every figure stands which."""
    from archsearch.architecture import resolve
    from archsearch.config import ConfigError
    from archsearch.throughput.cost_table import check_usable, load_table, with_vocabulary
    from archsearch.throughput.machine import key_of_this_machine
    from archsearch.throughput.predict import Predictor
    from archsearch.throughput.verdict import verdict_of

    table = load_table(args.predict)
    key = table.key
    conditions = conditions_of(args, {name: getattr(key, name) for name in SETTINGS})
    warning = check_usable(table, key_of_this_machine(conditions), args.predict, named=True)
    predictor, target, rows = Predictor(table), target_of(args), []
    architectures = [with_vocabulary(resolve(text, args.like)) for text in args.architectures]
    anchor = with_vocabulary(resolve(args.against, args.like)) if args.against else architectures[0]
    for architecture in architectures:
        if missing := [*table.missing(architecture), *table.missing(anchor)]:
            way_out = "archsearch measure --table adds what a space holds"
            raise ConfigError(f"{args.predict}: not in the table: {_named(missing, architecture, anchor)}; {way_out}")
        seconds, ratio = predictor.predict(architecture), predictor.relative(architecture, anchor)
        memory = predictor.peak_memory(architecture)
        low, high = seconds.interval(args.confidence)
        speed = seconds.inverse(conditions.tokens_per_step)
        probability = None
        if target is not None:
            probability = (speed if target.absolute else ratio).probability_above(target.at_least)
            if not target.absolute and architecture.id == anchor.id:  # a share of itself
                probability = float(target.at_least <= 1)
        rows.append(
            {
                **describe(architecture),
                "tokens_per_second": speed.median,
                "milliseconds": 1000 * seconds.median,
                "milliseconds_low": 1000 * low,
                "milliseconds_high": 1000 * high,
                "ratio": ratio.median,
                "ratio_low": ratio.interval(args.confidence)[0],
                "ratio_high": ratio.interval(args.confidence)[1],
                "peak_memory_bytes": memory.median if memory else None,
                "probability": probability,
                "verdict": verdict_of(probability, args.confidence),
            }
        )
    figures = {
        "table": args.predict,
        "key": key.describe(),
        "warning": warning,
        "at_least": args.at_least,
        "results": rows,
    }
    if not args.json:
        print_predicted(figures, args.confidence)
    write(args, figures)
    return 0


def _named(parts: Sequence[str], *architectures: Architecture) -> str:
    """Return parts of a table in words, by the letters that stand for them."""
    from archsearch.throughput.cost_table import part_of

    words = {
        part_of(x, letter): f"{letter}: {x.mixers[letter].type}, {x.mixers[letter].options.shape()}"
        for x in architectures
        for letter in x.pattern
    }
    return "; ".join(dict.fromkeys(words.get(part, part) for part in parts))
