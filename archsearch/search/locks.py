"""Locks that vanish with their holder: a killed process leaves none behind (POSIX)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol


class Lock(Protocol):
    """An exclusive lock, held until `release` or the end of the process; not inherited by children."""

    def take(self, *, wait: bool) -> bool:
        """Take the lock; without `wait`, return False where someone else holds it."""

    def renew(self) -> bool:
        """Return whether it is still held; one that was lost is taken again where it is free."""

    def release(self) -> None:
        """Let go."""

    def __enter__(self) -> Lock: ...

    def __exit__(self, *_: object) -> None: ...


class Locks(Protocol):
    """What the workers of one study must not do at the same time."""

    def study(self) -> Lock:
        """Return the lock under which trials are begun, adopted and ended."""

    def confirm(self) -> Lock:
        """Return the lock of whoever writes the result."""

    def confirmation(self, name: str) -> Lock:
        """Return the lock of whoever trains a candidate again."""

    def trial(self, number: int) -> Lock:
        """Return the lock of whoever runs the trial."""

    def is_held(self, number: int) -> bool:
        """Return whether a worker, of this or another process, is running the trial."""

    def close(self) -> None:
        """Let go of everything."""


class FileLock:
    """A lock on a file, which stays where it is: among the processes of one machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, *, wait: bool) -> bool:
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

    def renew(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        self.take(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FileLocks:
    """The locks of a study on SQLite, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def study(self) -> FileLock:
        return FileLock(self._folder / "study.lock")

    def confirm(self) -> FileLock:
        return FileLock(self._folder / "confirm.lock")

    def confirmation(self, name: str) -> FileLock:
        path = self._folder / "trials" / name / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def trial(self, number: int) -> FileLock:
        path = self._path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def is_held(self, number: int) -> bool:
        try:
            with self._path(number).open() as file:  # who looks may have no right to write
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def close(self) -> None:
        """Do nothing: each lock is a file of its own."""

    def _path(self, number: int) -> Path:
        return self._folder / "trials" / f"{number:04d}" / "lock"
