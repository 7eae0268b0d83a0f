"""A PostgreSQL database that a study is kept in, for workers on many machines; its password is kept nowhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url

from archsearch.config import ConfigError

if TYPE_CHECKING:
    import psycopg

FORM = "postgresql://USER:PASSWORD@HOST/DATABASE"

CREATE_LOCK = 0x61726368
"""Taken while tables are made: two processes that make them at the same time disturb each other."""

SECONDS = 30
"""A connection on which nothing was said for so long is tried, and again every 10 s; it is lost after 3 times."""

KEEPALIVE = {"keepalives_idle": SECONDS, "keepalives_interval": 10, "keepalives_count": 3}
SERVER_SETTINGS = {
    **{f"tcp_{name}": value for name, value in KEEPALIVE.items()},
    "tcp_user_timeout": "60s",
    "idle_session_timeout": 0,
    "lock_timeout": 0,
    "statement_timeout": 0,
}
"""Else a server keeps the locks of a machine that is gone for hours, or ends the session of a worker that is busy."""


class ServerGoneError(ConnectionError):
    """The server does not answer, or no longer."""


GONE = (ServerGoneError, sqlalchemy.exc.OperationalError, optuna.exceptions.StorageInternalError)
"""What is raised, by us and by Optuna, while a server is away."""


@dataclass(frozen=True)
class Database:
    """Where it is; without a password, libpq looks for one in PGPASSWORD and ~/.pgpass."""

    url: URL
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=False)  # there is none in it

    def is_same(self, other: Database) -> bool:
        """Return whether both are one database, whoever logs in and however."""
        return _place(self.url) == _place(other.url)

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection of our own. Raises ServerGoneError, one line, and ConfigError without a driver."""
        driver = _driver()
        names = {"host": self.url.host, "port": self.url.port, "user": self.url.username, "dbname": self.url.database}
        try:
            connection: psycopg.Connection[Any] = driver.connect(
                **{name: value for name, value in names.items() if value is not None},
                **self._arguments(),
                autocommit=True,
            )
        except driver.OperationalError as error:
            raise ServerGoneError(f"{self}: {one_line(error)}") from None
        except driver.ProgrammingError as error:  # an option that libpq does not know
            raise ConfigError(f"--storage: {self}: {one_line(error)}") from None
        return connection

    def open(self) -> RDBStorage:
        """Open Optuna's storage, making its tables where there are none. Raises ServerGoneError and ConfigError."""
        driver = _driver()
        try:
            with self.connect() as connection:
                connection.execute("select pg_advisory_lock(%s)", (CREATE_LOCK,))
                return RDBStorage(
                    self.url.set(drivername="postgresql+psycopg", query={}).render_as_string(hide_password=False),
                    engine_kwargs={"pool_pre_ping": True, "connect_args": self._arguments()},
                )
        except driver.OperationalError as error:
            raise ServerGoneError(f"{self}: {one_line(error)}") from None
        except (sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:  # RuntimeError: tables of another Optuna
            raise ConfigError(f"{self}: {one_line(error)}") from None

    def study_names(self) -> list[str]:
        """Return the studies that are in it. Raises as `open`."""
        with one_line_errors(self):
            storage = self.open()
            names = optuna.get_all_study_names(storage)
            storage.remove_session()
            storage.engine.dispose()
        return names

    def _arguments(self) -> dict[str, Any]:
        query = {name: value for name, value in self.url.query.items() if isinstance(value, str)}
        settings = " ".join(f"-c {name}={value}" for name, value in SERVER_SETTINGS.items())
        return {
            "connect_timeout": 10,
            **KEEPALIVE,
            "tcp_user_timeout": 60_000,
            **query,
            "options": f"{query.get('options', '')} {settings}".strip(),
            **({"password": self.password} if self.password is not None else {}),
        }


def parse_database(text: str, name: str = "--storage") -> Database:
    """Read a URL. Raises ConfigError, which does not repeat the URL: there may be a password in it."""
    try:
        url = make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigError(f"{name}: must be {FORM}") from None
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ConfigError(f"{name}: must be {FORM}; got {url.drivername}://... (without --storage it is SQLite)")
    if "@" in (url.host or ""):
        raise ConfigError(f"{name}: a password's @ must be written as %40, its / as %2F and its : as %3A")
    if not url.database:
        raise ConfigError(f"{name}: must be {FORM}; it names no database")
    secrets = [key for key in url.query if key.endswith("password")]
    password = url.password if url.password is not None else url.query.get("password")
    url = URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    return Database(url.difference_update_query(secrets), str(password) if password is not None else None)


def hide_password(argument: str) -> str:
    """Return a word of a command line without the password of a URL in it."""
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1", re.sub(r"(postgres\S*?://[^:/@]*):.*@", r"\1@", argument))


def one_line(error: BaseException) -> str:
    """Return what a driver, or Optuna on top of it, says, in one line."""
    if isinstance(error, optuna.exceptions.StorageInternalError) and error.__cause__:
        error = error.__cause__
    text = str(getattr(error, "orig", None) or error).strip().splitlines()
    return text[0].strip() if text else type(error).__name__


@contextlib.contextmanager
def one_line_errors(place: Database | Path) -> Iterator[None]:
    """Raise what a server that is away makes Optuna raise as ServerGoneError, what an SQLite file does as OSError."""
    try:
        yield
    except ServerGoneError:
        raise
    except (*GONE, sqlalchemy.exc.DatabaseError) as error:
        kind = ServerGoneError if isinstance(place, Database) else OSError
        raise kind(f"{place}: {one_line(error)}") from None


def _place(url: URL) -> tuple[Any, ...]:
    query: Mapping[str, Any] = url.query
    return (url.host or query.get("host"), int(url.port or query.get("port", 5432)), url.database)


def _driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ConfigError("--storage: needs a driver for PostgreSQL: pip install 'archsearch[postgresql]'") from None
    return psycopg
