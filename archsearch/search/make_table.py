"""Make the cost table of a space, and hold its predictions against patterns that it has not seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archsearch.architecture import Architecture
from archsearch.pattern import compact
from archsearch.search.check_file import Record, load_records, save_records
from archsearch.search.cost_tables import architectures, random_patterns
from archsearch.search.space import Space
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.cost_table import check_usable, load_table, with_vocabulary
from archsearch.throughput.machine import key_of_this_machine
from archsearch.throughput.predict import Predictor
from archsearch.throughput.tabulate import Say, Tabulator, new_table

HELD_OUT_SEED = 0
NEW_SHAPES = 1 / 3
"""This share of the patterns of a check has head shapes that the table lacks until it is asked for them."""


def open_table(
    space: Space,
    path: Path,
    conditions: Conditions,
    *,
    say: Say,
    until: float,
    limit: float,
    command: str,
    layers: int | None = None,
) -> Tabulator:
    """Return what fills the table at `path`, begun now or gone on with. Raises ConfigError where it is another's."""
    if path.exists():
        table = load_table(path)
        check_usable(table, key_of_this_machine(conditions), path, named=False)
    else:
        table = new_table(space.base, conditions, layers)
        table.command = command
    return Tabulator(table, path, conditions.device, say, until, limit)


def fill(tabulator: Tabulator, space: Space, held_out: int) -> bool:
    """Measure every block of the space, then the base and random patterns as a whole; False where time ran out."""
    patterns = [space.base, *random_patterns(space, held_out, HELD_OUT_SEED)][: max(1, held_out)]
    return tabulator.complete(architectures(space)) and tabulator.hold_out(patterns)


def check(tabulator: Tabulator, space: Space, number: int, seed: int, path: Path) -> dict[str, Any]:
    """Predict random patterns, then measure them whole; what is done is kept in `path`, and not done again.

    Where the table lacks a block, the prediction is refused, the block measured and added, and then predicted.
    Patterns that the table has measured whole are passed over, and so are records of another table or another draw.
    """
    unseen = random_patterns(space, number, seed, new_shapes=NEW_SHAPES, known=tabulator.table.wholes)
    patterns = [with_vocabulary(x) for x in unseen]
    records = load_records(path, tabulator.table) if path.exists() else {}
    if records is None:
        tabulator.say(f"{path}: is the check of another table; begun anew")
        records = {}
    ids = {architecture.id: None for architecture in patterns}
    for architecture in patterns:
        if architecture.id in records:
            continue
        if time.monotonic() >= tabulator.until:
            break
        records[architecture.id] = last = _predict_and_measure(tabulator, space, architecture)
        asked = [records[x] for x in ids if x in records]
        others = [x for x in records.values() if x.id not in ids]
        figures = {"seed": seed, **summary(asked), "complete": len(asked) == len(ids)}
        save_records(path, tabulator.table, figures, asked, others)
        tabulator.say(
            f"{last.pattern} ({last.shape or 'as the base'}): predicted {last.predicted_ms:.2f} ms "
            f"[{last.low_ms:.2f}, {last.high_ms:.2f}], measured {last.measured_ms:.2f} ({last.error:+.2%})"
        )
    asked = [records[x] for x in ids if x in records]
    return {**summary(asked), "complete": len(asked) == len(ids)}


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return median, 95th percentile and largest error, the mean with its sign, and how many intervals held."""
    errors = sorted(abs(record.error) for record in records)
    if not errors:
        return {"number": 0}
    return {
        "number": len(records),
        "median_error": statistics.median(errors),
        "95th_percentile_error": errors[min(len(errors) - 1, round(0.95 * (len(errors) - 1)))],
        "largest_error": errors[-1],
        "mean_signed_error": statistics.fmean(record.error for record in records),
        "covered": sum(record.covered for record in records) / len(records),
        "additivity_error": statistics.fmean(record.measured_ms / record.sum_of_parts_ms - 1 for record in records),
        "largest_ratio_error": max(abs(record.ratio_error) for record in records),
    }


def _predict_and_measure(tabulator: Tabulator, space: Space, architecture: Architecture) -> Record:
    missing = tabulator.table.missing(architecture)
    if missing:
        tabulator.say(f"{compact(architecture.pattern)}: not in the table: {len(missing)} blocks; measuring them")
        until, tabulator.until = tabulator.until, float("inf")
        tabulator.complete([architecture])
        tabulator.until = until
    predictor = Predictor(tabulator.table)
    base = with_vocabulary(space.base)
    estimate, ratio = predictor.predict(architecture), predictor.relative(architecture, base)
    low, high = estimate.interval(0.95)
    whole = tabulator.measure_whole(architecture)
    measured_base = predictor.measured(base)
    base_seconds = measured_base.seconds if measured_base else predictor.predict(base).median
    inserted = [x.letter for x in space.replacements if x.letter in architecture.pattern]
    shown = [(letter, architecture.mixers[letter].options.shape()) for letter in inserted]
    return Record(
        id=architecture.id,
        pattern=compact(architecture.pattern),
        shape="; ".join(f"{letter}: {x}" if len(space.replacements) > 1 else x for letter, x in shown),
        missing=missing,
        sum_of_parts_ms=1000 * predictor.sum_of_parts(architecture),
        predicted_ms=1000 * estimate.median,
        low_ms=1000 * low,
        high_ms=1000 * high,
        measured_ms=1000 * whole.seconds,
        measured_error_ms=1000 * whole.error,
        error=whole.seconds / estimate.median - 1,
        covered=low <= whole.seconds <= high,
        ratio_predicted=ratio.median,
        ratio_measured=base_seconds / whole.seconds,
        ratio_error=base_seconds / whole.seconds / ratio.median - 1,
        predicted_bytes=memory.median if (memory := predictor.peak_memory(architecture)) else None,
        measured_bytes=whole.bytes,
    )
