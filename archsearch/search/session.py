"""One run of `archsearch search`: begin or go on, search, confirm, conclude."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError
from archsearch.lifetime import die_with_parent
from archsearch.search import cost, cost_tables, evidence, gpus, outlook
from archsearch.search.brute_force import check_size
from archsearch.search.changed import told
from archsearch.search.confirmation import Watch, confirm
from archsearch.search.database import Database, one_line_errors, parse_database
from archsearch.search.failures import cause_of_end
from archsearch.search.folder import SQLITE, database_of, keep_space, open_folder, read_evidence
from archsearch.search.helpers import helped
from archsearch.search.process import Launcher, in_order
from archsearch.search.selection import Confirmed
from archsearch.search.space import Space
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study
from archsearch.search.view import StudyView

Workers = list[subprocess.Popen[bytes]]

WAIT_SECONDS = 1.0
GRACE_SECONDS = 10.0
"""A further worker has so long to leave its trial in order."""

STOPPED = "stopped as asked; everything is kept, the same command goes on"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says beyond the space; `join` marks a further worker of the same command (seconds)."""

    file: str
    output: Path
    trials: int
    seed: int
    workers: int = 1
    timeout: float | None = None
    stop_after: float | None = None
    fresh: bool = False
    accept_changes: bool = False
    join: bool = False
    plugins: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    launcher: str = "local"
    storage: str | None = field(default=None, repr=False)  # there may be a password in it


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """How the run ended: the evidence of a finished study, or why there is none yet."""

    folder: Path
    evidence: dict[str, Any] | None
    message: str


def run(space: Space, options: Options) -> Conclusion:
    """Run or resume the study. Raises ConfigError; Ctrl-C keeps everything that has ended."""
    if options.join:
        die_with_parent()
    launch, devices = _launcher(options, space), space.study.devices
    if launch is None:
        _check_machine(space)
    if space.study.sampler == "brute_force":
        check_size(space)
    own_gpus, *other_gpus = gpus.assign(gpus.visible() if launch is None else [], options.workers, devices)
    os.environ.update(gpus.use(own_gpus))
    processes = options.workers * devices
    if processes > 1:  # processes side by side that each take all cores slow each other down many times
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    began = time.monotonic()
    database = _database(space, options)
    folder = open_folder(options.output, space, fresh=options.fresh, database=database)
    with (
        in_order(),
        one_line_errors(database or folder / SQLITE),
        contextlib.closing(_open(folder, space, options, database)) as store,
    ):
        if found := _finished(store, options.trials):
            message = "finished before; --trials N goes on, --fresh begins anew"
            return Conclusion(folder=folder, evidence=found, message=message)
        limits = Limits(
            trials=options.trials,
            ask_until=began + options.timeout if options.timeout is not None else None,
            stop_at=began + options.stop_after if options.stop_after is not None else None,
        )
        tables, news = cost_tables.prepare(space, options.file, folder, options.tables)
        view = StudyView(space, folder, options.trials, lambda rows: cost.time_left(space, rows, options.trials))
        study = Study(space, store, limits, view, options.plugins, tables, launch)
        helpers = 0 if launch is None else options.workers - 1
        with view, _workers(options, folder, database, other_gpus if launch is None else [], view.say) as workers:
            if not options.join:
                _announce(study, view, options, news)
            with helped(study, helpers, _take_part):
                return _search(study, view, options, workers)


def _search(study: Study, view: StudyView, options: Options, workers: Workers) -> Conclusion:
    store = study.store
    ending = _run_all(study)
    confirmed = None if ending is None else _confirm(study, view.confirming)
    if ending is None or confirmed is None:
        while any(worker.poll() is None for worker in workers):  # each ends the trial in hand
            study.patiently(study.refresh)
            time.sleep(0.5)
        return Conclusion(folder=store.folder, evidence=None, message=STOPPED)
    if options.join:
        return Conclusion(folder=store.folder, evidence=None, message=ending)
    lock = store.locks.confirm()
    study.patiently(partial(lock.take, wait=True))
    try:
        if found := study.patiently(partial(_finished, store, options.trials)):
            return Conclusion(folder=store.folder, evidence=found, message=ending)
        rows = study.patiently(store.rows)
        found = evidence.gather(study.space, rows, confirmed, ending=ending, seed=store.seed, changes=store.changes)
        study.patiently(partial(evidence.write, study.space, store.folder, found, rows))
        study.patiently(partial(store.share_evidence, found))
        return Conclusion(folder=store.folder, evidence=found, message=ending)
    finally:
        lock.release()


def _run_all(study: Study) -> str | None:
    """Run trials until none is left to ask and none is running, here or elsewhere: a dead worker's is taken over.

    Returns why there is nothing to ask, or None where the study's limits came first.
    """
    told = False
    while (ending := study.run()) is not None:
        others = study.patiently(study.running)
        if not others or study.limits.stopped():
            return None if others else ending
        if not told:
            study.view.say(f"waiting for trials {', '.join(map(str, others))} of other workers, to confirm with them")
        told = True
        study.patiently(study.refresh)
        time.sleep(WAIT_SECONDS)
    return None


def _confirm(study: Study, watch: Watch) -> list[Confirmed] | None:
    """Take part in the confirmation; None where the study's limits came in between."""
    rows = study.patiently(study.store.rows)
    return confirm(study, watch) if any(row.outcome == "completed" for row in rows) else []


def _take_part(study: Study) -> None:
    """Do what a further worker does."""
    if _run_all(study) is not None:
        _confirm(study, lambda *_: None)


def _announce(study: Study, view: StudyView, options: Options, news: Sequence[str]) -> None:
    rows = study.store.rows()
    ended = sum(row.outcome not in ("duplicate", "waiting", "running") for row in rows)
    where = f" in {study.store.database}" if study.store.database else ""
    view.say(f"{study.store.folder}: {f'going on after {ended} candidates' if ended else 'a new study'}{where}")
    view.say(cost.upper_bound(study.space, options.trials))
    for line in (*map(told, study.store.changes), *news, outlook.look(study.space, study.predictors()).warning):
        if line:
            view.say(line)
    study.refresh()


def _open(folder: Path, space: Space, options: Options, database: Database | None) -> Store:
    store = Store(folder, space, options.seed, database, accept_changes=options.accept_changes)
    keep_space(folder, space)
    return store


def _database(space: Space, options: Options) -> Database | None:
    """Return the database of a shared study, after a look whether it answers: only then it goes on record."""
    if options.fresh and options.storage:
        database: Database | None = parse_database(options.storage)
    else:
        database = database_of(options.output / space.name, options.storage)
    if database and space.name in database.study_names() and options.fresh:
        raise ConfigError(
            f"--fresh: {database} holds the study {space.name}, and other machines may be at it; give the space "
            f"another name, or remove the study (optuna delete-study --study-name {space.name} --storage URL)"
        )
    return database


def _finished(store: Store, trials: int) -> dict[str, Any] | None:
    """Return the evidence of a study that is not asked for more, written here where another machine gathered it."""
    found = store.read_evidence()
    if found is None or found.get("changes", []) != store.changes or _goes_on(found, trials):
        return None
    if found != read_evidence(store.folder):
        evidence.write(store.space, store.folder, found, store.rows())
    return found


def _goes_on(found: dict[str, Any], trials: int) -> bool:
    """Return whether a finished study is asked for more candidates than it has tried."""
    distinct = sum(count for outcome, count in found["counts"].items() if outcome not in ("duplicate", "waiting"))
    exhausted = "every candidate" in found["ending"] or "repeats in a row" in found["ending"]
    return trials > distinct and not exhausted


def _launcher(options: Options, space: Space) -> Launcher | None:
    """Return what runs the trials where that is not this machine."""
    if options.launcher == "local":
        return None
    from archsearch.search.ray_launcher import RayLauncher

    return RayLauncher(space.study.devices)


def _check_machine(space: Space) -> None:
    limited = space.budget.peak_memory is not None
    if not limited and "peak_memory" not in space.budget.wanted:
        return
    import torch

    if not torch.cuda.is_available():
        name = "budget.peak_memory" if limited else "objectives: peak_memory"
        raise ConfigError(f"{name}: is measured on a GPU, and this machine has none")


@contextlib.contextmanager
def _workers(
    options: Options,
    folder: Path,
    database: Database | None,
    their_gpus: Sequence[Sequence[str]],
    say: Callable[[str], None],
) -> Iterator[Workers]:
    """Run the further workers of this command, each on GPUs of its own; none outlives it; a lost one is told."""
    workers: Workers = []
    leaving = threading.Event()

    def tell(worker: subprocess.Popen[bytes], log: Path) -> None:
        if worker.wait() and not leaving.is_set():
            _, reason = cause_of_end(worker.returncode, log, memory_ran_out=False)
            say(f"{log.parent.name} has ended, {reason}")

    environment = dict(os.environ)
    if database and database.password is not None:  # anybody on the machine can read a command line
        environment["PGPASSWORD"] = database.password
    try:
        for number, own_gpus in enumerate(their_gpus, start=1):
            own = folder / "trials" / f"worker-{socket.gethostname()}-{number}"  # machines may share the folder
            own.mkdir(parents=True, exist_ok=True)
            with (own / "log.txt").open("ab") as log:
                command = [sys.executable, "-m", "archsearch", *_arguments(options, database)]
                worker = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment | gpus.use(own_gpus),
                )
            workers.append(worker)
            threading.Thread(target=tell, args=(worker, own / "log.txt"), daemon=True).start()
        yield workers
    finally:
        leaving.set()
        for worker in workers:
            worker.terminate()  # in order: its trial has not failed
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(GRACE_SECONDS)
            if worker.stdin:
                worker.stdin.close()  # it ends when this does
            worker.wait()


def _arguments(options: Options, database: Database | None) -> list[str]:
    """Return the command line of a further worker."""
    arguments = ["search", options.file, "--output", str(options.output), "--join"]
    arguments += ["--trials", str(options.trials), "--seed", str(options.seed)]
    for name, value in (("--timeout", options.timeout), ("--stop-after", options.stop_after)):
        arguments += [name, f"{value:g}s"] if value is not None else []
    arguments += ["--storage", str(database)] if database else []
    for flag, values in (("--plugin", options.plugins), ("--table", options.tables)):
        arguments += [word for value in values for word in (flag, value)]
    return arguments
