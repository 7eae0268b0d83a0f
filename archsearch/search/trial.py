"""One candidate in a process of its own: budget verdict, then training on each task. `python -m ... FOLDER`.

Reads FOLDER/config.yaml, writes FOLDER/metrics.json after each phase and while training, and takes up what an earlier
run of the same folder has finished. Where it trains on several devices, it starts `python -m ... FOLDER RANK` for each
other one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError, Where, load_yaml
from archsearch.files import write_atomic
from archsearch.lifetime import die_with_parent
from archsearch.search.failures import DISK_FULL_STATUS, cause_of, is_disk_full, unless_disk_full
from archsearch.search.memory import peaks
from archsearch.search.process import Report, read_report
from archsearch.search.ranks import Failure, Ranks, folder_of_rank

REPORT_SECONDS = 0.5
PATIENCE = 3.0
"""Rank 0 fails first where another one has died: the other's reason is waited for so many seconds."""


class RefusalError(Exception):
    """What the budget says against the candidate."""


class Journal:
    """The trial's metrics.json: what is done, and what is going on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.json"
        begun: Report = {"metrics": {}, "seconds": {}, "rungs": [], **read_report(folder)}
        self.report: Report = {**begun, "outcome": None, "reason": None, "cause": None}
        self._written = 0.0
        self._lock = threading.Lock()

    def write(self, **news: Any) -> None:
        """Put news on record."""
        with self._lock:
            self.report.update(news, memory=peaks(self.report.get("memory", {})))
            write_atomic(self._path, json.dumps(self.report, indent=1))
            self._written = time.monotonic()

    def progress(self, news: Mapping[str, Any]) -> None:
        """Put a training's news (step, total_steps, loss) on record, not more often than a reader looks."""
        if time.monotonic() - self._written > REPORT_SECONDS:
            with unless_disk_full():
                self.write(progress=dict(news))


def main(folder: Path, rank: int = 0) -> int:
    """Run the trial, or a rank of it; 0 once the trial's outcome (completed, refused, failed) is on record."""
    die_with_parent(alone=rank > 0)
    journal, ranks, status = Journal(folder_of_rank(folder, rank)), Ranks(), 0
    try:
        keep_record(
            journal,
            lambda journal: run(load_yaml(folder / "config.yaml"), folder, journal, rank, ranks),
            elsewhere=lambda: ranks.failure(PATIENCE),
        )
    except OSError as error:
        if not is_disk_full(error):
            raise
        status = DISK_FULL_STATUS
    if (status or journal.report["outcome"] == "failed") and (ranks or rank):
        _leave(status or int(rank > 0))
    if ranks or rank:
        from archsearch.training.ranks import leave

        leave()
    return status


def keep_record(
    journal: Journal, work: Callable[[Journal], None], elsewhere: Callable[[], Failure | None] = lambda: None
) -> None:
    """Do the work and put its outcome on record; a failure `elsewhere` may be the reason of one here."""
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
        cause, reason = elsewhere() or (cause_of(error), f"{type(error).__name__}: {message}")
        journal.write(outcome="failed", reason=reason, cause=cause)


def run(config: Mapping[str, Any], folder: Path, journal: Journal, rank: int, ranks: Ranks) -> None:
    """Take the candidate through every phase that is not on record yet."""
    from archsearch.architecture import Architecture
    from archsearch.registry import import_plugin

    for plugin in config["plugins"]:
        import_plugin(plugin)
    where = Where(str(folder / "config.yaml"))
    architecture = Architecture.from_dict(config["architecture"], where / "architecture")
    journal.write(model=architecture.id)
    if config["budget"] and rank == 0:
        _check_budget(architecture, config["budget"], config.get("tables", {}), journal, where / "budget")
    done = read_report(folder).get("metrics", {})
    missing = {name: task for name, task in config["tasks"].items() if name not in done}
    if rank == 0:
        for name in missing:
            _drop_damaged(folder / name / "last.ckpt")
    if missing and rank == 0 and config["devices"] > 1:
        ranks.start(folder, config["devices"], partial(_give_up, journal))
    for name, task in missing.items():
        _train(architecture, name, task, config, folder, journal)
        if rank == 0:  # the checkpoint has served: a study would fill the disk with them
            (folder / name / "last.ckpt").unlink(missing_ok=True)


def _drop_damaged(checkpoint: Path) -> None:
    """See that a task begins anew whose checkpoint was damaged, as a power failure does: that is no trial's fault."""
    from archsearch.training.checkpoint import load_checkpoint

    if checkpoint.exists():
        try:
            load_checkpoint(checkpoint)
        except ConfigError as error:
            print(f"{error}; beginning anew", file=sys.stderr)
            checkpoint.unlink()


def _give_up(journal: Journal, failure: Failure) -> None:
    cause, reason = failure
    journal.write(outcome="failed", reason=reason, cause=cause)
    _leave(0)


def _leave(code: int) -> None:
    """End at once: an orderly exit of a rank would wait for those that wait for a dead one."""
    sys.stderr.flush()
    os._exit(code)


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
        figures = {name: asdict(figure) for name, figure in found.wanted.items()}
        checks = [asdict(check) for check in found.checks.values()]
        journal.write(measurement=found.figures, figures=figures, checks=checks)
    broken = [check for values in journal.report["checks"] if (check := Check(**values)).violation > 0]
    if broken:
        raise RefusalError("; ".join(check.reason for check in broken))


def _train(
    architecture: Any, name: str, task: Mapping[str, Any], config: Mapping[str, Any], folder: Path, journal: Journal
) -> None:
    from archsearch.training.run import train_and_evaluate
    from archsearch.training.rungs import Rungs

    orders = task.get("rungs", {"steps": [], "metrics": []})
    # as rank 0 has them on record: all ranks have to stop at the same ones
    known = [rung["step"] for rung in read_report(folder).get("rungs", []) if rung["task"] == name]
    rungs = Rungs(
        steps=[step for step in orders["steps"] if step not in known],
        metrics=orders["metrics"],
        report=partial(_reach, journal, name),
    )
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
        seed=config["seed"],
        checkpoint_dir=folder / name,
        precision=task["precision"],
        devices=config["devices"],
        strategy=config["strategy"],
        progress=lambda news: journal.progress(news),
        rungs=rungs,
    )
    _check_finite(name, metrics)
    journal.report["metrics"][name] = {key: float(value) for key, value in metrics.items()}
    journal.report["seconds"][name] = time.monotonic() - started
    journal.write()


def _reach(journal: Journal, name: str, step: int, metrics: dict[str, float]) -> None:
    """Put a rung on record; the study's worker sees it there, and training does not wait for what it says."""
    for key, value in metrics.items():
        if math.isnan(value):
            raise ArithmeticError(f"{name}: {key} is {value} at step {step}")
    journal.report["rungs"].append({"task": name, "step": step, "metrics": metrics})
    journal.write()


def _check_finite(name: str, metrics: Mapping[str, float]) -> None:
    for key, value in metrics.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name}: {key} is {value} after training")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
