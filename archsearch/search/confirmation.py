"""Train the best again, and the base, with fresh seeds: runs that all workers of a study share.

Each run (a candidate and a seed) has a lock, which a worker that is killed leaves free, and its result is kept in the
study's storage: every worker takes what nobody has, until all are there.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from archsearch.search.database import GONE
from archsearch.search.failures import DEVICE, TIMEOUT, HeldUpError, distrust
from archsearch.search.process import Report, run_trial
from archsearch.search.retry import run_to_its_end
from archsearch.search.rows import Row
from archsearch.search.selection import Confirmed, finalists, fresh_seeds
from archsearch.search.study import Study, Throttled, TrialTakenError, trial_config

WAIT_SECONDS = 1.0
"""So often a worker looks whether what others train is there, or has become free."""

Watch = Callable[[Row, int, Report], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A candidate that is trained with a fresh seed."""

    row: Row
    seed: int
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its lock and its folder."""
        return f"confirm-{self.row.number:04d}-seed{self.seed}"

    @property
    def key(self) -> str:
        """Its result in the storage: one of another training, as after a change of the space, is no result of it."""
        training = {name: value for name, value in self.config.items() if name != "plugins"}
        return f"{self.name}-{zlib.crc32(json.dumps(training, sort_keys=True).encode()):08x}"


def confirm(study: Study, watch: Watch) -> list[Confirmed] | None:
    """Train what no other worker of the study trains, until each finalist has a result for each seed.

    Returns None where the study's limits came in between. Raises HeldUpError where this worker cannot go on.
    """
    rows = study.patiently(study.store.rows)
    chosen = finalists(study.space, rows)
    runs = [_run(study, row, seed) for row in chosen for seed in fresh_seeds(study.space, study.store.seed)]
    while True:
        reports = study.patiently(study.store.confirmations)
        missing = [run for run in runs if not _is_there(study, run, reports)]
        if not missing:
            return [_confirmed(row, {run.seed: reports[run.key] for run in runs if run.row is row}) for row in chosen]
        if study.limits.stopped():
            return None
        try:
            if not any(_take(study, run, watch) for run in missing):
                time.sleep(WAIT_SECONDS)
        except HeldUpError:
            if study.limits.stopped():
                return None
            raise


def _run(study: Study, row: Row, seed: int) -> Run:
    assert row.description is not None
    config = trial_config(study.space, row.description.architecture, seed, study.plugins, budget=False)
    return Run(row=row, seed=seed, config=config)


def _take(study: Study, run: Run, watch: Watch) -> bool:
    """Train one run, unless another worker does; returns whether there is news."""
    lock = study.store.locks.confirmation(run.name)

    def look(report: Report) -> None:
        with contextlib.suppress(*GONE):
            if not lock.renew():
                raise TrialTakenError
        watch(run.row, run.seed, report)

    if not study.patiently(partial(lock.take, wait=False)):
        return False
    try:
        if not _is_there(study, run, study.patiently(study.store.confirmations)):
            with study.store.work_in(study.store.folder / "trials" / run.name) as folder:
                launch = partial(
                    study.launch or run_trial,
                    folder,
                    run.config,
                    timeout=study.space.study.timeout_per_trial,
                    watch=Throttled(look),
                )
                retries, say = study.space.study.retries, study.view.say
                report = run_to_its_end(launch, folder, retries=retries, say=say, stopped=study.limits.stopped)
            if report.get("cause") == DEVICE:  # not on record: a sound GPU can still train it
                raise distrust(run.name, report.get("reason"))
            if report.get("cause") == TIMEOUT:
                report = {**report, "timeout": study.space.study.timeout_per_trial}
            study.patiently(partial(study.store.record_confirmation, run.key, report))
    except TrialTakenError:
        study.view.say(f"{run.name}: another worker has it by now")
    finally:
        lock.release()
    return True


def _is_there(study: Study, run: Run, reports: Mapping[str, Report]) -> bool:
    """Return whether a run has ended; one that timed out goes on once it may take longer."""
    report = reports.get(run.key)
    return report is not None and (report.get("timeout") or math.inf) >= study.space.study.timeout_per_trial


def _confirmed(row: Row, reports: Mapping[int, Report]) -> Confirmed:
    return Confirmed(
        row=row,
        metrics={seed: report["metrics"] for seed, report in reports.items() if report["outcome"] == "completed"},
        failures={seed: str(report["reason"]) for seed, report in reports.items() if report["outcome"] != "completed"},
    )
