"""A study's folder: begun, gone on with, or moved aside."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError, load_yaml, save_yaml
from archsearch.search.database import Database, parse_database
from archsearch.search.locks import FileLock
from archsearch.search.space import Space

SQLITE, STORAGE, SPACE = "study.db", "storage.yaml", "space.yaml"
"""A study's trials, or where else they are (a URL without its password), and the space."""

IDENTITY = "identity"
"""In the latter, which of the studies of its name that have been there it is."""


def open_folder(output: Path, space: Space, *, fresh: bool, database: Database | None = None) -> Path:
    """Return the study's folder, holding the space as it was when the study began. Raises ConfigError."""
    folder = output / space.name
    try:
        if fresh and folder.exists():
            _move_aside(folder)
        (folder / "trials").mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "study.lock"):
            _begin(folder, space, database)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return folder


def keep_space(folder: Path, space: Space) -> None:
    """Let the folder hold the space as it is now, once the study has accepted it."""
    saved = folder / SPACE
    if load_yaml(saved) != space.written:
        save_yaml(saved, space.written)


def database_of(folder: Path, given: str | None) -> Database | None:
    """Return the database that a study is kept in, or None where that is its folder's SQLite file.

    `given` is the URL of the command line; a study that has begun elsewhere is not begun again. Raises ConfigError.
    """
    record, wanted = folder / STORAGE, parse_database(given) if given is not None else None
    known = parse_database(str(load_yaml(record).get("storage")), str(record)) if record.exists() else None
    if wanted is None:
        return known
    where = str(known) if known else f"its own {SQLITE}" if (folder / SQLITE).exists() else None
    if where and not (known and known.is_same(wanted)):
        raise ConfigError(f"--storage: {folder} is kept in {where}, not in {wanted}; another name keeps both")
    return wanted


def belong(folder: Path, database: Database, identity: str) -> None:
    """See that the folder's trials are of the study in the database, and no other's. Raises ConfigError."""
    record = folder / STORAGE
    known = load_yaml(record).get(IDENTITY) if record.exists() else None
    if known is None:
        save_yaml(record, {"storage": str(database), IDENTITY: identity})
    elif known != identity:
        raise ConfigError(
            f"{folder}: holds trials of an earlier study of this name, and {database} has a new one; "
            "move the folder aside, or give another --output"
        )


def read_evidence(folder: Path) -> dict[str, Any] | None:
    """Return a finished study's evidence, or None."""
    path = folder / "evidence.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise ConfigError(
            f"{path}: is not valid JSON: {error}; without it the command of the study writes it anew"
        ) from None


def _begin(folder: Path, space: Space, database: Database | None) -> None:
    saved = folder / SPACE
    if not saved.exists():
        save_yaml(saved, space.written)
    if database and not (folder / STORAGE).exists():
        save_yaml(folder / STORAGE, {"storage": str(database)})
    begun = (folder / SQLITE).exists() and (folder / SQLITE).stat().st_size
    if database is None and (folder / "evidence.json").exists() and not begun:
        raise ConfigError(f"{folder}: a recorded study without its database cannot go on; --fresh begins anew")


def _move_aside(folder: Path) -> None:
    for lock in map(FileLock, (*folder.glob("*.lock"), *folder.glob("trials/*/lock"))):
        if not lock.take(wait=False):
            raise ConfigError(f"--fresh: a search is at work in {folder}; end that first, or give another --output")
        lock.release()
    moved = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while moved.exists():
        moved = moved.with_name(f"{moved.name}-{number}")
        number += 1
    folder.rename(moved)
