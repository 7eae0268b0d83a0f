"""The processes of one trial that trains on several devices: the trial itself is rank 0 and starts the others.

They are told nothing but the trial's folder: whoever started the trial has asked for its candidate once, for all.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from archsearch.search.failures import CRASH, cause_of_end
from archsearch.search.process import read_report

POLL_SECONDS = 0.2

Failure = tuple[str, str]
"""Cause (failures.py) and reason."""


def folder_of_rank(folder: Path, rank: int) -> Path:
    """Return where a rank keeps its report and log."""
    return folder / f"rank-{rank}" if rank else folder


class Ranks:
    """Ranks 1 and on of a trial, started and watched by rank 0."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._folder = Path()

    def __bool__(self) -> bool:
        return bool(self._processes)

    def start(self, folder: Path, devices: int, give_up: Callable[[Failure], None]) -> None:
        """Start them; when one fails, a thread calls `give_up` with its reason, since rank 0 would wait for ever."""
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(NODE_RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        for rank in range(1, devices):
            own = folder_of_rank(folder, rank)
            own.mkdir(exist_ok=True)
            (own / "metrics.json").unlink(missing_ok=True)
            with (own / "log.txt").open("ab") as log:
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-m", "archsearch.search.trial", str(folder), str(rank)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"LOCAL_RANK": str(rank)},
                )
        if self._processes:
            threading.Thread(target=self._watch, args=(give_up,), daemon=True, name="ranks").start()

    def failure(self, patience: float = 0.0) -> Failure | None:
        """Return why a rank has failed; one that made rank 0 fail has `patience` seconds to end."""
        until = time.monotonic() + patience
        while self._processes:
            for rank, process in self._processes.items():
                own = folder_of_rank(self._folder, rank)
                if process.poll() and (report := read_report(own)).get("outcome") != "completed":
                    cause, reason = report.get("cause"), report.get("reason")
                    if not reason:
                        cause, reason = cause_of_end(process.returncode, own / "log.txt", memory_ran_out=False)
                    return cause or CRASH, f"{reason} (rank {rank})"
            if time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        return None

    def _watch(self, give_up: Callable[[Failure], None]) -> None:
        while not (failure := self.failure()):
            if all(process.poll() == 0 for process in self._processes.values()):
                return
            time.sleep(POLL_SECONDS)
        give_up(failure)
