"""Locks among the workers of many machines: PostgreSQL's advisory locks, of a connection that a worker keeps open.

They are of the connection's session on the server, which ends with the worker, or once the server notices that the
worker's machine is gone (`Database.connect`). Nobody has to send heartbeats, and a busy worker is never taken for dead.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any

from archsearch.search.database import Database, ServerGoneError, one_line

if TYPE_CHECKING:
    import psycopg

STUDY, CONFIRM = -1, -2
"""Second keys of locks that are no trial's; the first key says which study."""

IS_HELD = """
select 1 from pg_locks where locktype = 'advisory' and objsubid = 2 and granted
and database = (select oid from pg_database where datname = current_database())
and classid::bigint = %s and objid::bigint = %s
"""


class AdvisoryLocks:
    """The locks of a study in a database."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.key = zlib.crc32(name.encode()) - 2**31  # as PostgreSQL's signed 32 bits
        self.connection: psycopg.Connection[Any] = database.connect()

    def study(self) -> AdvisoryLock:
        return AdvisoryLock(self, STUDY)

    def confirm(self) -> AdvisoryLock:
        return AdvisoryLock(self, CONFIRM)

    def confirmation(self, name: str) -> AdvisoryLock:
        return AdvisoryLock(self, CONFIRM - 1 - zlib.crc32(name.encode()) % 2**30)

    def trial(self, number: int) -> AdvisoryLock:
        return AdvisoryLock(self, number)

    def is_held(self, number: int) -> bool:
        return self.ask(IS_HELD, self.key % 2**32, number) is not None

    def close(self) -> None:
        self.connection.close()

    def ask(self, query: str, *values: int) -> Any:
        """Return the first value of the answer, or None where it has no row. Raises ServerGoneError.

        A connection that was lost before is replaced by a new one, which holds none of its locks.
        """
        import psycopg

        if self.connection.closed:
            self.connection = self._database.connect()
        try:
            row = self.connection.execute(query.encode(), values).fetchone()
        except psycopg.OperationalError as error:
            self.connection.close()
            raise ServerGoneError(f"{self._database}: {one_line(error)}") from None
        return row[0] if row else None

    def revive(self) -> None:
        """See that there is a connection, a new one where the old one turns out to be lost. Raises ServerGoneError."""
        with contextlib.suppress(ServerGoneError):
            self.ask("select 1")
        if self.connection.closed:
            self.ask("select 1")


class AdvisoryLock:
    """One of them. PostgreSQL lets a session take its own lock again, so this remembers the session it was taken in."""

    def __init__(self, locks: AdvisoryLocks, number: int) -> None:
        self._locks, self._number = locks, number
        self._taken_in: Any = None

    def take(self, *, wait: bool) -> bool:
        locks = self._locks
        if wait:
            locks.ask("select pg_advisory_lock(%s::int, %s::int)", locks.key, self._number)
        elif not locks.ask("select pg_try_advisory_lock(%s::int, %s::int)", locks.key, self._number):
            return False
        self._taken_in = locks.connection
        return True

    def renew(self) -> bool:
        self._locks.revive()
        return self._taken_in is self._locks.connection or self.take(wait=False)

    def release(self) -> None:
        if self._taken_in is self._locks.connection and not self._locks.connection.closed:
            with contextlib.suppress(ServerGoneError):
                self._locks.ask("select pg_advisory_unlock(%s::int, %s::int)", self._locks.key, self._number)
        self._taken_in = None

    def __enter__(self) -> AdvisoryLock:
        self.take(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
