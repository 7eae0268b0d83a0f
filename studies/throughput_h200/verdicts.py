"""How often verdicts agree, and whether order and temperature of the card matter. Writes one JSON file, resumably.

    python studies/throughput_h200/verdicts.py OUT.json [--stop-after 8min]

Three patterns of the 410M space against its base at T 4096. First each ratio from a pooled long measurement (two sets
of models, 40 rounds each); then, with fresh models every time, five verdicts at each of three budgets: 1 % above that
ratio (must be refused), 1 % below and 5 % below (must be let in); last the same ratio with either one first, on a card
that has idled and on one that has not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import archsearch.throughput.measure as measuring
from archsearch.architecture import Architecture
from archsearch.config import Where, parse_quantity
from archsearch.files import write_atomic
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.measure import Target, compare

PATTERNS = ("MR3AR7AR7AR3", "R3MA(R6MA)2R3", "R2M2A(R5M2A)2R3")
BUDGETS = {"1 % above": 1.01, "1 % below": 0.99, "5 % below": 0.95}
REPEATS = 5
LONG_ROUNDS = 40
IDLE_SECONDS = 45


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--like", default="search_spaces/hybrid_410m.yaml")
    parser.add_argument("--patterns", nargs="*", default=PATTERNS)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--blocks", default="eager")
    parser.add_argument("--device")
    parser.add_argument("--stop-after", default="8h")
    args = parser.parse_args()
    until = time.monotonic() + parse_quantity(args.stop_after, "seconds", Where("--stop-after"))
    conditions = Conditions(
        batch_size=args.batch_size,
        length=args.length,
        precision=args.precision,
        blocks=args.blocks,
        device=args.device,
        time_limit=90.0,
    )
    record: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {}
    base = Architecture.load(args.like)
    for name, experiment in steps(base, args.patterns, conditions, record):
        if name in record:
            continue
        if time.monotonic() >= until:
            print("stopped as asked; the same command goes on")
            return
        record[name] = experiment()
        record["summary"] = summarise(record, args.patterns)
        write_atomic(args.output, json.dumps(record, indent=1) + "\n")
        print(name, {key: record[name][key] for key in ("ratio", "verdict", "rounds", "seconds")}, flush=True)
    print(json.dumps(record["summary"], indent=1))


def steps(base: Architecture, patterns: Any, conditions: Conditions, record: dict[str, Any]) -> Any:
    """Yield each experiment by name; those that need the pooled ratios come after them."""
    models = {pattern: base.with_pattern(pattern) for pattern in patterns}
    for pattern, model in models.items():
        for part in (1, 2):
            yield f"long {pattern} {part}", lambda model=model: long(model, base, conditions)
    for number in range(REPEATS):
        for pattern, model in models.items():
            for name, factor in BUDGETS.items():
                target = Target(at_least=pooled(record, pattern) * factor)
                yield (
                    f"verdict {pattern} {name} {number}",
                    lambda model=model, target=target: plain(model, base, conditions, target),
                )
    pattern = patterns[min(1, len(patterns) - 1)]
    for warm in ("cold", "warm"):
        for order in ("candidate first", "base first"):
            yield (
                f"order {warm}, {order}",
                lambda warm=warm, order=order: ordered(models[pattern], base, conditions, warm, order),
            )


def long(model: Architecture, base: Architecture, conditions: Conditions) -> dict[str, Any]:
    least, measuring.LEAST_ROUNDS = measuring.LEAST_ROUNDS, LONG_ROUNDS
    try:
        return plain(model, base, dataclasses.replace(conditions, time_limit=1.0))
    finally:
        measuring.LEAST_ROUNDS = least


def plain(
    model: Architecture, base: Architecture, conditions: Conditions, target: Target | None = None
) -> dict[str, Any]:
    return {**dataclasses.asdict(compare(model, base, conditions, target=target)), "target": target and target.at_least}


def ordered(model: Architecture, base: Architecture, conditions: Conditions, warm: str, order: str) -> dict[str, Any]:
    """Return the ratio of model to base, whichever of them every round begins with."""
    if warm == "cold":
        time.sleep(IDLE_SECONDS)
    if order == "base first":
        return plain(model, base, conditions)
    found = plain(base, model, conditions)
    low, high = 1 / found["ratio_high"], 1 / found["ratio_low"]
    return {**found, "ratio": 1 / found["ratio"], "ratio_low": low, "ratio_high": high}


def pooled(record: dict[str, Any], pattern: str) -> float:
    return statistics.fmean(record[f"long {pattern} {part}"]["ratio"] for part in (1, 2))


def correlation_of_neighbours(ratios: list[float]) -> float:
    """Return how alike one round and the next are; the verdict supposes 0."""
    return statistics.correlation(ratios[:-1], ratios[1:])


def summarise(record: dict[str, Any], patterns: Any) -> dict[str, Any]:
    """Return per pattern and budget how many verdicts were right, wrong and undecided, and the seconds they took."""
    summary: dict[str, Any] = {}
    for pattern in patterns:
        if not all(f"long {pattern} {part}" in record for part in (1, 2)):
            continue
        longs = [record[f"long {pattern} {part}"] for part in (1, 2)]
        summary[pattern] = {
            "pooled_ratio": pooled(record, pattern),
            "long_ratios": [x["ratio"] for x in longs],
            "spread_of_a_round": [statistics.stdev(map(math.log, x["round_ratios"])) for x in longs],
            "correlation_of_neighbours": [correlation_of_neighbours(x["round_ratios"]) for x in longs],
        }
        for name, factor in BUDGETS.items():
            found = [record[key] for key in record if key.startswith(f"verdict {pattern} {name} ")]
            right = "infeasible" if factor > 1 else "feasible"
            verdicts = [x["verdict"] for x in found]
            undecided = verdicts.count("undecided")
            summary[pattern][name] = {
                "right": verdicts.count(right),
                "undecided": undecided,
                "wrong": len(verdicts) - verdicts.count(right) - undecided,
                "seconds": [round(x["seconds"], 1) for x in found],
            }
    keys = [key for key in record if key.startswith("order ")]
    summary["order"] = {key: [record[key][name] for name in ("ratio_low", "ratio", "ratio_high")] for key in keys}
    return summary


if __name__ == "__main__":
    main()
