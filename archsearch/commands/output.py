"""Where a command may write: what stands there stays unless it is told otherwise, and what fails says where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

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


def prepare_output(path: str | Path) -> None:
    """Make the folder of a file that is written in the end; raise ConfigError where it cannot be written or replaced.

    What took minutes to measure must not be lost to a slip in a name.
    """
    path = Path(path)
    with writing(path), suppress(FileExistsError):  # a file in the folder's place: named below
        path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path, force=True, is_folder=False)
    with writing(path), TemporaryFile(dir=path.parent):
        pass


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Name `path` where it cannot be written."""
    from archsearch.config import ConfigError

    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
