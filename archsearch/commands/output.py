"""Where a command may write: what stands there stays unless it is told otherwise, and what fails says where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OURS = ("config.json", "architecture.yaml")  # lies in every folder that is written here


def check_output(path: Path, force: bool, *, is_folder: bool) -> None:
    """Raise ConfigError where `path` exists, `force` or not where it is of the other kind, or has no parent folder.

    A folder is only replaced where it is empty or holds an earlier export: a slip must not cost somebody's files.
    """
    from archsearch.config import ConfigError

    if not path.parent.is_dir():
        why = "is no folder" if path.parent.exists() else "no such folder"
        raise ConfigError(f"{path}: {path.parent}: {why}")
    if not path.exists():
        return
    if path.is_dir() != is_folder:
        raise ConfigError(f"{path}: is a {'folder' if path.is_dir() else 'file'}, and not replaced by the other kind")
    if not force:
        raise ConfigError(f"{path}: exists already; --force replaces it")
    if is_folder and any(path.iterdir()) and not any((path / name).is_file() for name in OURS):
        raise ConfigError(f"{path}: is no earlier export (none of {', '.join(OURS)} in it); it is not replaced")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Name `path` where it cannot be written."""
    from archsearch.config import ConfigError

    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
