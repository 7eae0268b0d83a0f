"""The folder that a trial works in, on a file system that machines may share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from archsearch.search.locks import FileLock

PATIENCE, POLL_SECONDS = 120.0, 1.0
"""For so long a file server may keep the lock of a machine that is gone."""


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[Path]:
    """Yield the folder, locked: what is in it is gone on with. Where that is in use, yield one beside it (0005.2).

    In use it can be although the trial is ours: its worker has lost the database's server, which gave the trial away,
    and goes on writing until it hears of that.
    """
    until = time.monotonic() + PATIENCE
    for number in count(1):
        own = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        own.mkdir(parents=True, exist_ok=True)
        lock = FileLock(own / "lock")
        if _taken(lock, until if number == 1 else 0.0):
            try:
                yield own
            finally:
                lock.release()
            return


def _taken(lock: FileLock, until: float) -> bool:
    with contextlib.suppress(OSError):
        while not lock.take(wait=False):
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)
    return True  # and where the file system knows no locks
