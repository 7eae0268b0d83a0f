"""What the ways of `archsearch measure` share: conditions, names, and where figures go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

BATCH_SIZE, LENGTH, PRECISION, MODE = 8, 512, "fp32", "train"
TIME_LIMIT, PART_LIMIT = 90.0, 30.0  # seconds
HELD_OUT, SEED = 8, 1
LEAST = {"held_out": 0, "layers": 1, "check": 0}
OF_TABLE: tuple[str, ...] = ("held_out", "layers", "check", "seed", "stop_after")
OF_PATTERNS: tuple[str, ...] = ("against", "like", "at_least", "isolate", "predict")
LARGEST_FRACTION = 10  # above it, --at-least is a number of tokens/s
SETTINGS = ("mode", "blocks", "batch_size", "length", "precision")


def check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for an option that would be ignored, or a number that is too small."""
    from archsearch.config import ConfigError

    way, ignored = "PATTERN|FILE", OF_TABLE
    if args.table:
        way, ignored = "--table", OF_PATTERNS
    elif args.predict:
        way, ignored = "--predict", (*OF_TABLE, "isolate")
    for name in ignored:
        if (value := getattr(args, name)) is not None and value is not False:
            raise ConfigError(f"--{name.replace('_', '-')}: has no meaning with {way}")
    for name, least in LEAST.items():
        if (value := getattr(args, name)) is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')}: must be at least {least}; got {value}")


def target_of(args: argparse.Namespace) -> Any:
    """Return what `--at-least` asks, None where it is not given."""
    from archsearch.throughput.measure import Target

    if args.at_least is None:
        return None
    return Target(at_least=args.at_least, absolute=args.at_least > LARGEST_FRACTION)


def conditions_of(args: argparse.Namespace, defaults: Mapping[str, Any] | None = None) -> Any:
    """Return what the flags say, where they say nothing the defaults."""
    from archsearch.throughput.conditions import Conditions

    values = {"batch_size": BATCH_SIZE, "length": LENGTH, "precision": PRECISION, "mode": MODE, "blocks": "eager"}
    values |= defaults or {}
    given = {name: value for name in values if (value := getattr(args, name)) is not None}
    limit = TIME_LIMIT if args.time_limit is None else args.time_limit
    return Conditions(**{**values, **given}, time_limit=limit, confidence=args.confidence, device=args.device)


def describe(architecture: Any) -> dict[str, Any]:
    """Return pattern and id of an architecture."""
    from archsearch.pattern import compact

    return {"pattern": compact(architecture.pattern), "id": architecture.id}


def write(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Print figures as JSON, and write them to a file, as the flags say: what cannot be written has been shown."""
    from archsearch.commands.output import writing
    from archsearch.files import write_atomic

    text = json.dumps(figures, indent=2)
    if args.json:
        print(text)
    if args.output:
        with writing(args.output):
            write_atomic(args.output, text + "\n")
