"""What a study has found, as plain values: evidence.json, from which every final table is printed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archsearch import __version__
from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.files import write_atomic
from archsearch.search import ledger
from archsearch.search.database import hide_password
from archsearch.search.front import front, ranked
from archsearch.search.provenance import header
from archsearch.search.rows import Row
from archsearch.search.selection import CONFIDENCE, Confirmed, Estimate, comparisons, confirmed_front, ties, winner
from archsearch.search.space import Space

FORMAT = 1
PACKAGES = ("torch", "lightning", "optuna", "triton", "numpy")


def gather(
    space: Space,
    rows: Sequence[Row],
    confirmed: Sequence[Confirmed],
    *,
    ending: str,
    seed: int,
    changes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return all figures, seeds, verdicts and circumstances of a study that has ended."""
    best = _winner_row(space, rows, confirmed)
    on_front = confirmed_front(space, confirmed)
    pruning = ledger.gather(space, rows)
    return {
        "format": FORMAT,
        "name": space.name,
        "ending": ending,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["archsearch", *map(hide_password, sys.argv[1:])]),
        "seed": seed,
        "changes": list(changes),
        "versions": {"archsearch": __version__, "python": platform.python_version(), **_versions()},
        "device": _device(rows),
        "objectives": [{**dataclasses.asdict(objective), "label": objective.label} for objective in space.objectives],
        "counts": dict(Counter(row.outcome for row in rows)),
        **({"pruning": pruning} if pruning else {}),
        "winner": best.number if best else None,
        "nearest": None if best else _nearest(rows),
        "front": [row.number for row in front(space, rows)],
        "confidence": CONFIDENCE,
        "comparisons": comparisons(confirmed),
        "ties": [candidate.row.number for candidate in ties(space, confirmed)],
        "confirmed": [
            {**_confirmed(space, candidate, confirmed), "on_front": candidate in on_front} for candidate in confirmed
        ],
        "trials": [_trial(space, row) for row in rows],
    }


def write(space: Space, folder: Path, evidence: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write best/ and, last, evidence.json, which marks the study as finished."""
    from archsearch.export.lightning import to_lightning
    from archsearch.export.yaml import to_yaml

    best, task = folder / "best", space.tasks[space.objectives[0].task]
    built = {row.number: row.description.architecture for row in rows if row.description}
    places = [(evidence["winner"], best / "architecture.yaml", to_yaml)] if evidence["winner"] is not None else []
    places += [(number, best / "fit.yaml", to_lightning) for number, *_ in places]
    places += [(number, best / "front" / f"{number:04d}.yaml", to_yaml) for number in evidence.get("front", [])]
    for old in (best / "front").glob("*.yaml"):
        old.unlink()
    for number, path, text in places:
        architecture = Architecture.from_dict(built[number] or {}, Where(str(path)))
        write_atomic(path, header(evidence, number) + text(architecture, task))
    write_atomic(folder / "evidence.json", json.dumps(evidence, indent=1) + "\n")


def _winner_row(space: Space, rows: Sequence[Row], confirmed: Sequence[Confirmed]) -> Row | None:
    """Return the best confirmed candidate, or where nothing was confirmed the best of the search's single seed."""
    if best := winner(space, confirmed):
        return best.row
    return next(iter(ranked(space, rows)), None)


def _nearest(rows: Sequence[Row]) -> int | None:
    """Return the refused candidate that misses the budget by least."""
    refused = [row for row in rows if row.outcome == "refused"]
    return min(refused, key=lambda row: row.result.violation).number if refused else None


def _confirmed(space: Space, candidate: Confirmed, everyone: Sequence[Confirmed]) -> dict[str, Any]:
    base = next((other for other in everyone if other.row.given == "base"), None)
    against = None if base is None or base is candidate else base
    return {
        "trial": candidate.row.number,
        "is_base": candidate is base,
        "feasible": candidate.row.outcome == "completed",
        "metrics": {str(seed): metrics for seed, metrics in candidate.metrics.items()},
        "failures": {str(seed): reason for seed, reason in candidate.failures.items()},
        "objectives": [
            {
                "label": objective.label,
                "values": {str(seed): value for seed, value in candidate.values(objective).items()},
                "estimate": _estimate(candidate.estimate(objective)),
                "difference_to_base": _estimate(candidate.difference(against, objective, comparisons(everyone)))
                if against
                else None,
            }
            for objective in space.objectives
        ],
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    return {**dataclasses.asdict(found), "is_tie": found.is_tie} if found else None


def _trial(space: Space, row: Row) -> dict[str, Any]:
    described = dataclasses.asdict(row.description) if row.description else {}
    result = dataclasses.asdict(row.result)
    rungs = {"rungs": [dataclasses.asdict(rung) for rung in row.rungs]} if row.rungs else {}
    return {"number": row.number, "given": row.given, **described, **result, "values": row.values(space), **rungs}


def _device(rows: Sequence[Row]) -> str:
    """Return the device that was measured, else the processor that everything ran on."""
    measured = [row.result.measurement["device"] for row in rows if row.result.measurement]
    return str(measured[0]) if measured else platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
