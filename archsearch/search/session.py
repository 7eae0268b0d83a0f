"""One run of `archsearch search`: begin or go on, search, confirm, conclude."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError
from archsearch.search import cost, evidence
from archsearch.search.folder import open_folder, read_evidence
from archsearch.search.locks import Lock
from archsearch.search.process import die_with_parent
from archsearch.search.selection import confirm
from archsearch.search.space import Space
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study
from archsearch.search.view import StudyView


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
    join: bool = False
    plugins: tuple[str, ...] = ()


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
    _check_machine(space)
    began = time.monotonic()
    folder = open_folder(options.output, space, fresh=options.fresh)
    store = Store(folder, space, options.seed)
    try:
        if (found := read_evidence(folder)) and not _goes_on(found, options.trials):
            return Conclusion(folder=folder, evidence=found, message="finished before; --trials N goes on, --fresh begins anew")
        limits = Limits(
            trials=options.trials,
            ask_until=began + options.timeout if options.timeout is not None else None,
            stop_at=began + options.stop_after if options.stop_after is not None else None,
        )
        view = StudyView(space, folder, options.trials, lambda rows: cost.time_left(space, rows, options.trials))
        with view, _workers(options, folder):
            return _search(Study(space, store, limits, view, options.plugins), view, options)
    finally:
        store.close()


def _search(study: Study, view: StudyView, options: Options) -> Conclusion:
    space, store = study.space, study.store
    if not options.join:
        _announce(study, view, options)
    ending = study.run()
    if ending is None or options.join:
        return Conclusion(folder=store.folder, evidence=None, message=_go_on(options, "stopped as asked"))
    _await_own_workers(study, options)
    if others := study.others_running():
        message = f"other workers still run trials {', '.join(map(str, others))}; the last one to end writes the result"
        return Conclusion(folder=store.folder, evidence=None, message=message)
    lock = Lock(store.folder / "confirm.lock")
    if not lock.take(wait=False):
        return Conclusion(folder=store.folder, evidence=None, message="another worker is confirming the best candidates")
    try:
        return _conclude(study, view, options, ending)
    finally:
        lock.release()


def _conclude(study: Study, view: StudyView, options: Options, ending: str) -> Conclusion:
    space, folder, rows = study.space, study.store.folder, study.store.rows()
    confirmed = None
    if any(row.outcome == "completed" for row in rows):
        confirmed = confirm(
            space,
            folder,
            rows,
            seed=study.store.seed,
            plugins=study.plugins,
            watch=view.confirming,
            stopped=study.limits.stopped,
        )
        if confirmed is None:
            return Conclusion(folder=folder, evidence=None, message=_go_on(options, "stopped as asked"))
    found = evidence.gather(space, rows, confirmed or [], ending=ending, seed=study.store.seed)
    evidence.write(space, folder, found, rows)
    return Conclusion(folder=folder, evidence=found, message=ending)


def _announce(study: Study, view: StudyView, options: Options) -> None:
    rows = study.store.rows()
    ended = sum(row.outcome not in ("duplicate", "waiting", "running") for row in rows)
    view.say(f"{study.store.folder}: {f'going on after {ended} candidates' if ended else 'a new study'}")
    view.say(cost.upper_bound(study.space, options.trials))
    study.refresh()


def _go_on(options: Options, what: str) -> str:
    return f"{what}; everything is kept, the same command goes on"


def _goes_on(found: dict[str, Any], trials: int) -> bool:
    """Return whether a finished study is asked for more candidates than it has tried."""
    distinct = sum(count for outcome, count in found["counts"].items() if outcome not in ("duplicate", "waiting"))
    exhausted = "every candidate" in found["ending"] or "repeats in a row" in found["ending"]
    return trials > distinct and not exhausted


def _check_machine(space: Space) -> None:
    if space.budget.peak_memory is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("budget.peak_memory: is measured on a GPU, and this machine has none")


@contextlib.contextmanager
def _workers(options: Options, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the further workers of this command; none outlives it."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, 1 if options.join else options.workers):
            own = folder / "trials" / f"worker-{number}"
            own.mkdir(parents=True, exist_ok=True)
            with (own / "log.txt").open("ab") as log:
                command = [sys.executable, "-m", "archsearch", *_arguments(options)]
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
                )
        _own_workers[:] = processes
        yield processes
    finally:
        for process in processes:
            if process.stdin:
                process.stdin.close()  # it ends when this does
            process.wait()


_own_workers: list[subprocess.Popen[bytes]] = []


def _await_own_workers(study: Study, options: Options) -> None:
    while any(process.poll() is None for process in _own_workers):
        study.refresh()
        time.sleep(0.5)


def _arguments(options: Options) -> Sequence[str]:
    arguments = ["search", options.file, "--output", str(options.output), "--join"]
    arguments += ["--trials", str(options.trials), "--seed", str(options.seed)]
    for name in ("timeout", "stop_after"):
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", f"{value:g}s"]
    for plugin in options.plugins:
        arguments += ["--plugin", plugin]
    return arguments
