"""Run a trial in a process of its own, and never outlive it or let it outlive us."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from archsearch.config import ConfigError, load_yaml, save_yaml
from archsearch.search.failures import KILLED, OUT_OF_MEMORY, TIMEOUT, cause_of_end, count_memory_kills

COMMAND = (sys.executable, "-m", "archsearch.search.trial")
POLL_SECONDS = 0.2

OTHERS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "JSM_NAMESPACE_RANK"),
)
"""What torchrun, srun and their like tell the processes that they start."""

Report = dict[str, Any]
"""What a trial has written to metrics.json: `phase`, and once it has ended `outcome` and `reason`."""


class Launcher(Protocol):
    """What runs a trial: `run_trial` on this machine, or something that has the same signature."""

    def __call__(
        self, folder: Path, config: Mapping[str, Any], *, timeout: float, watch: Callable[[Report], None]
    ) -> Report: ...


def run_trial(
    folder: Path,
    config: Mapping[str, Any],
    *,
    timeout: float,
    watch: Callable[[Report], None],
    command: Sequence[str] | None = None,
) -> Report:
    """Run, or take up again, the trial in `folder` and return its last report, `outcome` always among it.

    `outcome` is completed, refused or failed (with `cause`, as in failures.py, and the reason: its exception, a signal,
    or `timeout` seconds over).
    `watch` sees the report while the trial runs. An exception here, Ctrl-C included, kills the trial.
    """
    prepare(folder, config)
    started, kills = time.monotonic(), count_memory_kills()
    with (folder / "log.txt").open("ab") as log:
        # The child ends when its standard input does, so it dies with us however we die; its own session keeps Ctrl-C
        # from it and lets one signal end its data workers too.
        process = subprocess.Popen(
            [*(command or COMMAND), str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=of_its_own(os.environ),
        )
        try:
            timed_out = _wait(process, folder, started + timeout, watch)
        finally:
            _kill(process)
    report = read_report(folder)
    if timed_out:
        reason = f"timed out after {timeout:g} s (study.timeout_per_trial) in {report.get('phase', 'starting')}"
        return {**report, "outcome": "failed", "cause": TIMEOUT, "reason": reason}
    memory_ran_out = count_memory_kills() > kills
    if report.get("outcome") and process.returncode == 0:
        if memory_ran_out and report.get("cause") == KILLED:  # a data worker of it
            report["cause"] = OUT_OF_MEMORY
        return report
    cause, reason = cause_of_end(process.returncode, folder / "log.txt", memory_ran_out=memory_ran_out)
    return {**report, "outcome": "failed", "cause": cause, "reason": reason}


def read_report(folder: Path) -> Report:
    """Return what the trial in `folder` has written so far."""
    try:
        report: Report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return report


def of_its_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial: it is no rank of what has started the search."""
    return {name: value for name, value in environment.items() if name not in OTHERS}


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Let SIGTERM of a cluster manager and SIGHUP of a closed terminal end what is done as Ctrl-C does.

    A second one ends it at once; what is ignored, as under nohup, stays so.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = {number: handler for number, handler in previous.items() if handler != signal.SIG_IGN}
    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def prepare(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the trial's config; what another config has left in the folder is not taken up."""
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / "config.yaml", folder / "config.yaml.new"
    save_yaml(text, config)
    if path.exists() and not _trains_the_same(path, text):
        import shutil

        for found in folder.iterdir():
            if found.name not in ("lock", text.name):
                shutil.rmtree(found) if found.is_dir() else found.unlink()
    text.replace(path)


def _trains_the_same(old: Path, new: Path) -> bool:
    """Compare two configs but for the cost tables: where those are, and whose, is each machine's own."""
    try:
        before, after = load_yaml(old), load_yaml(new)
    except ConfigError:
        return False
    return {**before, "tables": None} == {**after, "tables": None}


def _wait(process: subprocess.Popen[bytes], folder: Path, deadline: float, watch: Callable[[Report], None]) -> bool:
    """Wait for the end of the process; returns whether it had to be stopped."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_SECONDS)
            return False
        if time.monotonic() > deadline:
            return True
        watch(read_report(folder))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process's group: itself, and the data workers that a crash of it would leave behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
