"""Run a trial again where it was not to blame for its end, a limited number of times."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from archsearch.search.failures import DEVICE, DISK_FULL, NOT_ITS_FAULT, HeldUpError, is_disk_full
from archsearch.search.process import Report

WAIT_SECONDS, RETRY_SECONDS = 600.0, 2.0
"""For so long a disk may be full, or a server away, and so often it is tried."""

PROBE = 2**20

Interruption = dict[str, str]
"""An end that a trial was not to blame for: `cause` and `reason`."""


def run_to_its_end(
    run: Callable[[], Report],
    folder: Path,
    *,
    retries: int,
    interruptions: Sequence[Interruption] = (),
    note: Callable[[Sequence[Interruption]], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Report:
    """Return the last report of `run`, with its `interruptions`: those before and those that `note` is told of.

    A full disk is no trial's doing: it is waited for, and where it stays full the worker gives up and keeps the trial.
    So does a worker whose GPU has failed a trial as often as it may be tried. Raises HeldUpError.
    """
    known, filled = list(interruptions), 0
    while True:
        report = _run(run, folder)
        if report.get("cause") not in NOT_ITS_FAULT:
            return {**report, "interruptions": known}
        known.append({"cause": report["cause"], "reason": report["reason"]})
        note(known)
        if report["cause"] == DISK_FULL:
            filled += 1
            if filled > retries:
                raise _held_up(folder, report["reason"])
            wait_for_room(folder, say=say, stopped=stopped)
        elif is_spent(known, retries):
            return {**report, "interruptions": known}
        if stopped():
            raise HeldUpError(f"stopped before another try: {report['reason']}")
        say(f"{folder.name}: {report['reason']}; it is run again")
        time.sleep(RETRY_SECONDS if report["cause"] == DEVICE else 0)


def is_spent(interruptions: Sequence[Interruption], retries: int) -> bool:
    """Return whether a trial has been interrupted more often than it is run again."""
    return sum(found["cause"] != DISK_FULL for found in interruptions) > retries


def wait_for_room(folder: Path, *, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Wait until something can be written in a folder again. Raises HeldUpError."""
    until = time.monotonic() + WAIT_SECONDS
    said = False
    while not _has_room(folder):
        if not said:
            say(f"waiting for room on the disk of {folder}")
            said = True
        if time.monotonic() > until or stopped():
            raise _held_up(folder, "no room for a file")
        time.sleep(RETRY_SECONDS)


def _run(run: Callable[[], Report], folder: Path) -> Report:
    try:
        return run()
    except OSError as error:
        if not is_disk_full(error):
            raise
        return {"outcome": "failed", "cause": DISK_FULL, "reason": f"the disk of {folder} is full: {error}"}


def _held_up(folder: Path, reason: str) -> HeldUpError:
    return HeldUpError(f"the disk of {folder} stays full ({reason}); everything is kept, the same command goes on")


def _has_room(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(PROBE)) == PROBE
    except OSError as error:
        if not is_disk_full(error):
            raise
        return False
