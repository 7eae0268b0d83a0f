"""`archsearch bench`: time the M²RNN kernels and the layer on this GPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=["m2rnn"], help="whose kernels")
    parser.add_argument(
        "--like", metavar="FILE", help="take the layers from this file's M and R (default: hybrid_410m)"
    )
    parser.add_argument("--output", metavar="FILE", help="also write all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Check, measure and print a line per shape; nothing is reported of kernels that are wrong."""
    import archsearch
    from archsearch.architecture import Architecture
    from archsearch.config import ConfigError
    from archsearch.files import write_atomic
    from archsearch.throughput.bench_m2rnn import WrongResultError, measure_all

    shipped = Path(archsearch.__file__).parent / "search_spaces" / "hybrid_410m.yaml"
    base = Architecture.load(args.like or shipped)
    if missing := {"M", "R"} - set(base.mixers):
        raise ConfigError(f"{args.like}: mixers: must bind M and R, the layers to compare; missing: {sorted(missing)}")
    try:
        records = measure_all(base, lambda line: print(line, flush=True))
    except WrongResultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.output:
        write_atomic(Path(args.output), json.dumps(records, indent=1) + "\n")
    return 0
