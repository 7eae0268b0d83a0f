"""Write files so that a reader, or a killed process, never leaves half of one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: str | Path, text: str) -> None:
    """Write `text` to a temporary file beside `path`, then rename it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the lock of `path`, a file beside it that stays, while it is read and written anew; waits for others."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_folder_atomic(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a folder under a temporary name beside `path`, then rename it; what stood there goes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        os.chmod(beside, 0o755)
        new, old = beside / "new", beside / "old"
        write(new)
        try:
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
