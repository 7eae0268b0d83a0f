"""The state of a study, from its folder and database, while it runs or after."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError, Where
from archsearch.search import ledger
from archsearch.search.database import one_line_errors
from archsearch.search.folder import SQLITE, database_of, read_evidence
from archsearch.search.front import front
from archsearch.search.process import Report, read_report
from archsearch.search.rows import Row
from archsearch.search.space import Space, load_space, parse_space
from archsearch.search.store import make_locks, read_study, trial_folder


@dataclass(frozen=True, kw_only=True)
class Status:
    """A study's trials; `alive` are the running ones with their reports, `abandoned` those of killed workers."""

    folder: Path
    space: Space
    rows: Sequence[Row]
    alive: Mapping[int, Report]
    abandoned: Sequence[int]
    evidence: Mapping[str, Any] | None

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there are of each outcome."""
        return dict(Counter(row.outcome for row in self.rows))

    @property
    def front(self) -> list[int]:
        """The trials on the Pareto front so far, where there are several objectives."""
        return [row.number for row in front(self.space, self.rows)]

    @property
    def pruning(self) -> dict[str, Any] | None:
        """How well the rungs have ranked so far, and what they saved; None without a pruner."""
        return ledger.gather(self.space, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "folder": str(self.folder),
            "name": self.space.name,
            "counts": self.counts,
            "running": {str(number): report for number, report in self.alive.items()},
            "abandoned": list(self.abandoned),
            **({"pruning": pruning} if (pruning := self.pruning) else {}),
            "finished": self.evidence is not None,
            "front": self.front,
            "winner": self.evidence["winner"] if self.evidence else None,
            "trials": [dataclasses.asdict(row) for row in self.rows],
        }


def read_status(folder: Path, storage: str | None = None) -> Status:
    """Read a study's folder and what it is kept in; `storage` is the URL of a database that the folder need not know.

    Raises ConfigError where there is no study.
    """
    database, saved = database_of(folder, storage), folder / "space.yaml"
    if database is None and not ((folder / SQLITE).exists() and saved.exists()):
        raise ConfigError(f"{folder}: holds no study ({SQLITE} and space.yaml)")
    name = load_space(saved).name if saved.exists() else folder.name
    with one_line_errors(database or folder / SQLITE):
        recorded = read_study(folder, name, database)
    shared = recorded.space if database else None
    space = parse_space(shared, Where(str(database))) if shared else load_space(saved)
    running = [row.number for row in recorded.rows if row.outcome == "running"]
    with one_line_errors(database or folder / SQLITE), contextlib.closing(make_locks(folder, name, database)) as locks:
        alive = [number for number in running if locks.is_held(number)]
    return Status(
        folder=folder,
        space=space,
        rows=recorded.rows,
        alive={number: read_report(trial_folder(folder, number)) for number in alive},
        abandoned=[number for number in running if number not in alive],
        evidence=recorded.evidence if database else read_evidence(folder),
    )
