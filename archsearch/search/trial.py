"""One candidate in a process of its own: budget verdict, then training on each task. `python -m ... FOLDER`.

Reads FOLDER/config.yaml, writes FOLDER/metrics.json after each phase and while training, and takes up what an earlier
run of the same folder has finished.
"""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archsearch.config import Where, load_yaml
from archsearch.files import write_atomic
from archsearch.search.failures import DISK_FULL_STATUS, cause_of, is_disk_full, unless_disk_full
from archsearch.search.memory import peaks
from archsearch.search.process import die_with_parent, read_report

REPORT_SECONDS = 0.5


class RefusalError(Exception):
    """What the budget says against the candidate."""


class Journal:
    """The trial's metrics.json: what is done, and what is going on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.json"
        fresh = {"outcome": None, "reason": None, "cause": None}
        self.report = {"metrics": {}, "seconds": {}, **read_report(folder), **fresh}
        self._written = 0.0

    def write(self, **news: Any) -> None:
        """Put news on record."""
        self.report.update(news, memory=peaks(self.report.get("memory", {})))
        write_atomic(self._path, json.dumps(self.report, indent=1))
        self._written = time.monotonic()

    def progress(self, news: Mapping[str, Any]) -> None:
        """Put a training's news (step, total_steps, loss) on record, not more often than a reader looks."""
        if time.monotonic() - self._written > REPORT_SECONDS:
            with unless_disk_full():
                self.write(progress=dict(news))


def main(folder: Path) -> int:
    """Run the trial; 0 once its outcome (completed, refused, failed) is on record."""
    die_with_parent()
    try:
        keep_record(Journal(folder), lambda journal: run(load_yaml(folder / "config.yaml"), folder, journal))
    except OSError as error:
        if not is_disk_full(error):
            raise
        return DISK_FULL_STATUS
    return 0


def keep_record(journal: Journal, work: Callable[[Journal], None]) -> None:
    """Do the work and put its outcome on record."""
    journal.write(phase="starting")
    try:
        work(journal)
        journal.write(phase="done", outcome="completed")
    except RefusalError as refusal:
        journal.write(phase="done", outcome="refused", reason=str(refusal))
    except Exception as error:
        with unless_disk_full():
            traceback.print_exc()
        message = str(error).strip().split("\n")[0]
        reason = f"{type(error).__name__}: {message}"
        journal.write(outcome="failed", reason=reason, cause=cause_of(error))


def run(config: Mapping[str, Any], folder: Path, journal: Journal) -> None:
    """Take the candidate through every phase that is not on record yet."""
    from archsearch.architecture import Architecture
    from archsearch.registry import import_plugin

    for plugin in config["plugins"]:
        import_plugin(plugin)
    where = Where(str(folder / "config.yaml"))
    architecture = Architecture.from_dict(config["architecture"], where / "architecture")
    if config["budget"]:
        _check_budget(architecture, config["budget"], config.get("tables", {}), journal, where / "budget")
    for name, task in config["tasks"].items():
        if name not in journal.report["metrics"]:
            _train(architecture, name, task, config["seed"], folder, journal)


def _check_budget(
    architecture: Any, plain: Mapping[str, Any], tables: Mapping[str, Any], journal: Journal, where: Where
) -> None:
    from archsearch.search.budget import Check, from_plain
    from archsearch.search.judge import Table, decide

    if "checks" not in journal.report:
        journal.write(phase="throughput")
        found = decide(
            from_plain(plain, where),
            architecture,
            {mode: Table.from_plain(table) for mode, table in tables.items()},
            say=lambda text: journal.write(phase=f"throughput: {text}"),
        )
        journal.write(measurement=found.figures, checks=[asdict(check) for check in found.checks.values()])
    broken = [check for values in journal.report["checks"] if (check := Check(**values)).violation > 0]
    if broken:
        raise RefusalError("; ".join(check.reason for check in broken))


def _train(architecture: Any, name: str, task: Mapping[str, Any], seed: int, folder: Path, journal: Journal) -> None:
    from archsearch.training.run import train_and_evaluate

    journal.write(phase=f"train {name}", progress={})
    started = time.monotonic()
    metrics = train_and_evaluate(
        architecture,
        task["data"],
        task["arguments"],
        optimizer=task["optimizer"],
        schedule=task["schedule"],
        max_tokens=task["tokens"],
        eval_lengths=task["evaluate"],
        seed=seed,
        checkpoint_dir=folder / name,
        precision=task["precision"],
        progress=lambda news: journal.progress(news),
    )
    _check_finite(name, metrics)
    journal.report["metrics"][name] = {key: float(value) for key, value in metrics.items()}
    journal.report["seconds"][name] = time.monotonic() - started
    journal.write()
    (folder / name / "last.ckpt").unlink(missing_ok=True)  # it has served: a study would fill the disk with them


def _check_finite(name: str, metrics: Mapping[str, float]) -> None:
    for key, value in metrics.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name}: {key} is {value} after training")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
