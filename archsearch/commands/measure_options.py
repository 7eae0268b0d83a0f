"""What the ways of `archsearch measure` share: conditions, names, and where figures go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

BATCH_SIZE, LENGTH, PRECISION, MODE = 8, 512, "fp32", "train"
TIME_LIMIT, PART_LIMIT = 90.0, 30.0  # seconds
SETTINGS = ("mode", "blocks", "batch_size", "length", "precision")


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
