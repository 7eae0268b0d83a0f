"""Locks that vanish with their holder: a killed process leaves none behind, on one machine or many (POSIX)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """An exclusive lock on a file, held until `release` or the end of the process; not inherited by children."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, *, wait: bool) -> bool:
        """Take the lock; without `wait`, return False where someone else holds it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go; the file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        self.take(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Return whether some process holds the lock."""
    lock = Lock(path)
    if not path.exists() or lock.take(wait=False):
        lock.release()
        return False
    return True
