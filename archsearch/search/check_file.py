"""The file of a cost table's check: what was predicted, what was then measured, and of which table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archsearch.config import Where, fill
from archsearch.files import write_atomic
from archsearch.throughput.cost_table import MOST_BYTES, CostTable, check_within, read_json


@dataclass(frozen=True, kw_only=True)
class Record:
    """One pattern, predicted and then measured whole; `missing` are the blocks that were measured when it was asked."""

    id: str
    pattern: str
    shape: str
    missing: list[str]
    sum_of_parts_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    measured_ms: float
    measured_error_ms: float
    error: float
    covered: bool
    ratio_predicted: float
    ratio_measured: float
    ratio_error: float
    predicted_bytes: float | None = None
    measured_bytes: float | None = None


def load_records(path: Path, table: CostTable) -> dict[str, Record] | None:
    """Read a file's records by architecture id; None where it is of another table. Raises ConfigError."""
    where = Where(str(path))
    plain = read_json(path, "is no check of a cost table")
    if not isinstance(plain, dict):
        raise where.error("must be the check of a cost table, a mapping")
    read = fill(_Written, {name: plain[name] for name in ("table", "patterns", "others") if name in plain}, where)
    if read.table != table_entry(table):
        return None
    lists = {"patterns": read.patterns, "others": read.others}
    places = [(where / f"{name}[{i}]", values) for name, found in lists.items() for i, values in enumerate(found)]
    records = [_record(values, place) for place, values in places]
    return {record.id: record for record in records}


def save_records(
    path: Path, table: CostTable, figures: dict[str, Any], records: Sequence[Record], others: Sequence[Record]
) -> None:
    """Write figures and the records that they sum up; `others` are kept for when they are asked for again."""
    written = {"patterns": [dataclasses.asdict(x) for x in records], "others": [dataclasses.asdict(x) for x in others]}
    write_atomic(path, json.dumps({**figures, "table": table_entry(table), **written}, indent=1) + "\n")


def table_entry(table: CostTable) -> dict[str, Any]:
    """Return whose table it is: its key, and the seconds of its anchor, which no two tables share."""
    return {**dataclasses.asdict(table.key), "anchor_seconds": table.anchor.seconds if table.anchor else None}


def _record(values: object, where: Where) -> Record:
    record = fill(Record, values, where)
    for name, value in vars(record).items():
        if isinstance(value, float):
            least = 1e-6 if name in ("sum_of_parts_ms", "predicted_ms", "measured_ms") else -MOST_BYTES
            check_within(value, least, MOST_BYTES, where / name)
    return record


@dataclass(frozen=True, kw_only=True)
class _Written:
    patterns: list[Any]
    others: list[Any] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)
