"""What `archsearch measure` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def print_measured(figures: dict[str, Any], conditions: Any) -> None:
    """Print a row per architecture, a chart of the ratios, and what was noted about the machine."""
    from rich.console import Console
    from rich.table import Table

    from archsearch.throughput.chart import Bar, draw
    from archsearch.throughput.device_state import describe

    results = figures["results"]
    table = Table("pattern", box=None, pad_edge=False, header_style="bold")
    utilised = any(result["mfu"] is not None for result in results)
    asked = figures["at_least"] is not None
    interval = f"{conditions.confidence:.0%} interval"
    columns = ["tokens/s", "ms/step", "of anchor", interval, "peak MiB", *["MFU"] * utilised, *["verdict"] * asked]
    for column in columns:
        table.add_column(column, justify="right")
    for result in results:
        texts = [
            f"{result['tokens_per_second']:,.0f}",
            f"{result['milliseconds']:,.1f}",
            f"{result['ratio']:.3f}",
            "open" if result["ratio_low"] is None else f"{result['ratio_low']:.3f} to {result['ratio_high']:.3f}",
            mebibytes(result["peak_memory_bytes"]),
        ]
        if utilised:
            texts.append(f"{result['mfu']:.1%}" if result["mfu"] else "-")
        if asked:
            texts.append(_verdict(result))
        table.add_row(result["pattern"], *texts)
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(table)
    if len(results) > 1 or results[0]["ratio_high"] != results[0]["ratio_low"]:
        bars = [
            Bar(label=x["pattern"], low=x["ratio_low"] or 0.0, median=x["ratio"], high=x["ratio_high"] or math.inf)
            for x in results
        ]
        console.print("\n" + "\n".join(draw(bars)) + "\n", markup=False)
    first = results[0]
    ways = "each in a fresh process" if figures["isolated"] else first["holding"]
    rounds = "/".join(sorted({str(x["rounds"]) for x in results}))
    seconds = sum(x["seconds"] for x in results) if figures["isolated"] else first["seconds"]
    notes = [
        f"{conditions.describe()} on {first['device']}; anchor {figures['anchor']['pattern']}, {rounds} rounds "
        f"there and back, {seconds:.0f} s, {ways}"
    ]
    repeated = [reason for x in results[: None if figures["isolated"] else 1] for reason in x["repeated"]]
    if repeated:
        notes.append(f"{len(repeated)} disturbed rounds repeated: {'; '.join(sorted(set(repeated)))}")
    if kept := max(x["disturbed"] for x in results):
        notes.append(f"{kept} disturbed rounds had to be kept: the machine was never quiet for long")
    if state := describe(first["device_state"]):
        notes.append(state)
    for note in notes:
        console.print(note, markup=False)


def _verdict(result: dict[str, Any]) -> str:
    probability = result["probability"]
    if result["verdict"] == "undecided":
        return "undecided (counts as infeasible)"
    sure = probability if result["verdict"] == "feasible" else 1 - probability
    return f"{result['verdict']}, p = {min(sure, 0.999):.3g}"


def mebibytes(number: float | None) -> str:
    return f"{number / 2**20:,.0f}" if number else "-"


def print_predicted(figures: dict[str, Any], confidence: float) -> None:
    """Print a row per architecture, and beside them whose figures they are."""
    from rich.console import Console
    from rich.table import Table

    shown = Table("pattern", box=None, pad_edge=False, header_style="bold")
    asked = figures["at_least"] is not None
    of_step = f"{confidence:.0%} interval"
    for column in ("tokens/s", "ms/step", of_step, "of anchor", "peak MiB", *["verdict"] * asked):
        shown.add_column(column, justify="right")
    for row in figures["results"]:
        interval = f"{row['milliseconds_low']:,.1f} to {row['milliseconds_high']:,.1f}"
        shown.add_row(
            row["pattern"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['milliseconds']:,.1f}",
            interval,
            f"{row['ratio']:.3f}",
            mebibytes(row["peak_memory_bytes"]),
            *([_verdict(row)] if asked else []),
        )
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(shown)
    console.print(f"predicted from {figures['table']}: {figures['key']}", markup=False)
    if figures["warning"]:
        console.print(f"warning: {figures['warning']}", markup=False)


def describe_table(path: str, figures: Mapping[str, Any]) -> list[str]:
    """Return what the whole patterns in a table, and those of a check, say about its predictions."""
    lines, found = [], figures["residuals"]
    if found["number"] > 1:
        off = f"{found['median_error']:.2%} in the median, {found['largest_error']:.2%} at most"
        lines.append(
            f"{found['number']} whole patterns: the parts miss {found['seen_by_no_part']:+.2%} of the step; each "
            f"predicted from the others is off by {off}"
        )
    found = figures.get("check")
    if found and found["number"]:
        lines.append(
            f"{found['number']} patterns predicted, then measured: median error {found['median_error']:.2%}, "
            f"95th percentile {found['95th_percentile_error']:.2%}, largest {found['largest_error']:.2%}; "
            f"{found['covered']:.0%} of the 95 % intervals hold; sum of parts alone {found['additivity_error']:+.2%} "
            f"({found['file']})"
        )
    done = "complete" if figures["complete"] else "stopped as asked; everything is kept, the same command goes on"
    return [*lines, f"{path}: {done}"]
