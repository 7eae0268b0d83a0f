"""What the pruner has done: how well each rung ranked the candidates that went on, and how many tokens it saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import ndtri

from archsearch.search.rows import Row
from archsearch.search.rungs import NONE, Place, places
from archsearch.search.selection import CONFIDENCE
from archsearch.search.space import Space
from archsearch.search.tasks import Objective

LEAST = 5
"""Fewer candidates than this have no interval."""

VARIANCE = 0.437
"""Of the inverse hyperbolic tangent of tau, times n - 4."""


def gather(space: Space, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the ledger of a study's trials as plain values, None where there is no pruner.

    Only candidates that went on to the end have two values to compare; among those that a rung has let pass, as they
    are more alike, it ranks worse than among all.
    """
    if space.study.pruner == NONE:
        return None
    ended = [row for row in rows if row.outcome in ("completed", "pruned")]
    whole = sum(task.tokens for task in space.tasks.values())
    saved = sum(whole - (row.result.trained_tokens or 0) for row in ended if row.outcome == "pruned")
    return {
        "pruner": space.study.pruner,
        "confidence": CONFIDENCE,
        "pruned": sum(row.outcome == "pruned" for row in ended),
        "of": len(ended),
        "tokens": {"saved": saved, "without": whole * len(ended)},
        "rungs": [
            _entry(space, place, objective, rows)
            for place in places(space)
            for objective in space.objectives
            if objective.task == place.task
        ],
    }


def lines(ledger: Mapping[str, Any] | None) -> list[str]:
    """Return a ledger in words; nothing of none."""
    if ledger is None or not ledger["of"]:
        return []
    tokens = ledger["tokens"]
    share = f"{tokens['saved']:,} of {tokens['without']:,} tokens saved ({tokens['saved'] / tokens['without']:.0%})"
    first = f"{ledger['pruner']}: {ledger['pruned']} of {ledger['of']} trained candidates pruned, {share}"
    return [first, *(f"  {_words(entry, ledger['confidence'])}" for entry in ledger["rungs"])]


def kendall(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float] | None:
    """Return Kendall's tau-b with its interval; None where it is not defined (fewer than two values, or all alike).

    The interval is symmetric in the inverse hyperbolic tangent of tau, with variance 0.437 / (n - 4) (Fieller, Hartley
    and Pearson, 1957). So that perfect agreement of a few candidates is no certainty, it is taken around a tau that is
    at least a pair away from that. Of fewer than 5 candidates it is all of [-1, 1].
    """
    from scipy.stats import kendalltau

    n = len(one)
    tau = float(kendalltau(one, other).statistic) if n > 1 else math.nan
    if math.isnan(tau):
        return None
    if n < LEAST:
        return tau, -1.0, 1.0
    most = 1 - 4 / (n * (n - 1))  # a pair of n (n - 1) / 2 the other way round
    centre = math.atanh(min(most, max(-most, tau)))
    half = float(ndtri(0.5 + CONFIDENCE / 2)) * math.sqrt(VARIANCE / (n - 4))
    return tau, min(tau, math.tanh(centre - half)), max(tau, math.tanh(centre + half))


def _entry(space: Space, place: Place, objective: Objective, rows: Sequence[Row]) -> dict[str, Any]:
    i, then, ends = space.objectives.index(objective), [], []
    for row in rows:
        there = next((x for x in row.rungs if x.is_at(place)), None)
        value, end = there.values[i] if there else None, row.values(space)[i]
        if row.outcome == "completed" and value is not None and end is not None:
            then.append(value)
            ends.append(end)
    tau, low, high = kendall(then, ends) or (None, None, None)
    return {
        "rung": place.number,
        "task": place.task,
        "tokens": place.tokens,
        "label": objective.label,
        "candidates": len(ends),
        "tau": tau,
        "low": low,
        "high": high,
    }


def _words(entry: Mapping[str, Any], confidence: float) -> str:
    where = f"rung {entry['rung']} of {entry['task']} ({entry['tokens']:,} tokens), {entry['label']}"
    if entry["tau"] is None:
        return f"{where}: no rank correlation with the end from {entry['candidates']} candidates"
    interval = f"{confidence:.0%} interval {entry['low']:.2f} to {entry['high']:.2f}"
    return f"{where}: Kendall's tau with the end {entry['tau']:.2f} ({interval}; {entry['candidates']} candidates)"
