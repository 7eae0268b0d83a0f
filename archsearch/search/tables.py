"""Tables of a study: live, at the end, and for `status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archsearch.search.process import Report
from archsearch.search.rows import Row
from archsearch.search.space import Space

COLOURS = {
    "completed": "green",
    "refused": "yellow",
    "illegal": "yellow",
    "failed": "red",
    "running": "cyan",
    "pruned": "magenta",
}

FRONT = "^"
"""Marks what is on the Pareto front."""


def make_console() -> Console:
    """Return a console that does not fold tables where nobody sees its edge."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def cells(space: Space, row: Row, report: Report | None = None, front: Collection[int] = ()) -> list[str]:
    """Return a trial's cells: number, pattern, shape, parameters, change, speed, objectives, outcome."""
    described = row.description
    values = row.values(space)
    return [
        f"{row.number}{'*' if row.given else ''}{FRONT if row.number in front else ''}",
        described.pattern if described else "",
        described.shape if described else "",
        f"{described.parameters:,}" if described and described.parameters else "",
        f"{described.parameters_change:+.1%}" if described and described.parameters_change is not None else "",
        _speed(row),
        *(number(value) if value is not None else "" for value in values),
        outcome(row, report),
    ]


def headings(space: Space) -> list[str]:
    """Return what the cells of a trial are."""
    labels = [objective.label for objective in space.objectives]
    return ["trial", "pattern", "shape", "parameters", "vs base", "speed", *labels, "outcome"]


def number(value: float, sign: str = "") -> str:
    """Return a figure for people: from a thousand on in full."""
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.{3 if sign else 4}g}"


def _speed(row: Row) -> str:
    """Return a trial's training speed beside the anchor's, or where there is no anchor in tokens/s."""
    mark = "~" if row.is_predicted else ""
    if row.ratio is not None:
        return f"{mark}{row.ratio:.2f} x"
    return f"{mark}{row.tokens_per_second:,.0f} tok/s" if row.tokens_per_second is not None else ""


def outcome(row: Row, report: Report | None = None) -> str:
    """Return how a trial ended, or what it is doing."""
    if row.outcome == "running":
        return doing(report or {})
    runs = len(row.result.interruptions) + 1
    text = f"{row.outcome} in run {runs}" if runs > 1 else row.outcome
    return f"{text}: {row.result.reason}" if row.result.reason else text


def doing(report: Report) -> str:
    """Return a running trial's phase in words."""
    text = str(report.get("phase", "starting"))
    if progress := report.get("progress"):
        text += f" {progress['step']}/{progress['total_steps']}, loss {progress['loss']:.3f}"
    return text


def rows_table(space: Space, rows: Sequence[Row], running: Mapping[int, Report], front: Collection[int] = ()) -> Table:
    """Return a row per trial, repeats left out; what is on the `front` is marked."""
    *names, last = headings(space)
    table = Table(*names[:3], box=None, pad_edge=False, header_style="bold")
    for name in names[3:]:
        table.add_column(name, justify="right")
    table.add_column(last)
    for row in rows:
        if row.outcome not in ("duplicate", "waiting"):
            texts = [escape(text) for text in cells(space, row, running.get(row.number), front)]
            table.add_row(*texts, style=COLOURS.get(row.outcome, "") if row.outcome != "completed" else "")
    return table


def confirmed_table(evidence: Mapping[str, Any]) -> Table:
    """Return the candidates trained again with fresh seeds: means with intervals, differences to the base."""
    trials = {trial["number"]: trial for trial in evidence["trials"]}
    table = Table("trial", "pattern", "shape", box=None, pad_edge=False, header_style="bold")
    table.add_column("vs base", justify="right")
    for objective in evidence["objectives"]:
        table.add_column(objective["label"])
        table.add_column("difference to base")
    for found in evidence["confirmed"]:
        trial = trials[found["trial"]]
        columns = []
        for objective in found["objectives"]:
            columns += [_mean(objective), "base" if found["is_base"] else _difference(objective)]
        mark = FRONT if found.get("on_front") else ""
        mark += " (winner)" if found["trial"] == evidence["winner"] else ""
        change = f"{trial['parameters_change']:+.1%}"
        table.add_row(f"{trial['number']}{mark}", trial["pattern"], trial["shape"], change, *columns)
    return table


def _mean(objective: Mapping[str, Any]) -> str:
    estimate = objective["estimate"]
    if estimate is None:
        return "no seed succeeded"
    if not objective["values"]:  # a measure
        return number(estimate["mean"])
    if estimate["low"] is None:
        return f"{estimate['mean']:.4g} (one seed)"
    return f"{estimate['mean']:.4g} ± {estimate['high'] - estimate['mean']:.2g}"


def _difference(objective: Mapping[str, Any]) -> str:
    found = objective["difference_to_base"]
    if found is None:
        return "unknown"
    if found["low"] is None:
        return f"{found['mean']:+.3g} (one seed: unknown)"
    if found["seeds"] == 0 and found["low"] == found["high"]:  # by formula
        return f"{number(found['mean'], '+')}{' a tie' if found['is_tie'] else ''}"
    interval = f"[{number(found['low'], '+')}, {number(found['high'], '+')}]"
    return f"{number(found['mean'], '+')} {interval}{' a tie' if found['is_tie'] else ''}"
