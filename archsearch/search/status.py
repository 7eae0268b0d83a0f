"""The state of a study, from its folder alone, while it runs or after."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError
from archsearch.search.folder import read_evidence
from archsearch.search.process import Report, read_report
from archsearch.search.rows import Row
from archsearch.search.space import Space, load_space
from archsearch.search.store import is_alive, read_rows, trial_folder


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "folder": str(self.folder),
            "name": self.space.name,
            "counts": self.counts,
            "running": {str(number): report for number, report in self.alive.items()},
            "abandoned": list(self.abandoned),
            "finished": self.evidence is not None,
            "winner": self.evidence["winner"] if self.evidence else None,
            "trials": [dataclasses.asdict(row) for row in self.rows],
        }


def read_status(folder: Path) -> Status:
    """Read a study's folder. Raises ConfigError where it holds none."""
    if not (folder / "study.db").exists() or not (folder / "space.yaml").exists():
        raise ConfigError(f"{folder}: holds no study (study.db and space.yaml)")
    space = load_space(folder / "space.yaml")
    rows = read_rows(folder, space.name)
    running = [row.number for row in rows if row.outcome == "running"]
    alive = [number for number in running if is_alive(folder, number)]
    return Status(
        folder=folder,
        space=space,
        rows=rows,
        alive={number: read_report(trial_folder(folder, number)) for number in alive},
        abandoned=[number for number in running if number not in alive],
        evidence=read_evidence(folder),
    )
