"""SQLite behind `Database`: a synchronous driver in threads of its own, 4 to 5 times as fast as aiosqlite.

One connection writes, in one thread; two read, each on its snapshot (WAL). In memory there is a single connection, so
reads and writes share one thread. Units of work that queue up while the disk is busy share the next transaction, each
under a savepoint: a transaction costs a flush of the disk, a savepoint next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from worker.adapters.sql.errors import DATABASE_ERRORS, CommitUnknownError
from worker.adapters.sql.lanes import Lane

__all__ = ["SqliteBackend"]

T = TypeVar("T")

_READERS: Final = 2
"""Reading connections: a long list does not hold up the loading of runs. More would only fight for the interpreter."""


@dataclass(frozen=True, slots=True)
class _Unit:
    work: Callable[[sa.Connection], Any]
    done: Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: Any
    error: Exception | None


class SqliteBackend:
    """One SQLite database, file or memory."""

    errors = (*DATABASE_ERRORS, sqlite3.Error)

    def __init__(
        self, url: sa.URL, options: dict[str, Any], wait_s: float, fault: Callable[[str], None] | None
    ) -> None:
        memory = url.database in (None, "", ":memory:")
        url = url.set(drivername="sqlite", database=None if memory else url.database)
        self._path = None if memory else Path(str(url.database))
        self._fault = fault
        self._wait_s = wait_s
        self._writes = self._engine(url, options, 1, "BEGIN IMMEDIATE")
        self._queue: deque[_Unit] = deque()
        self._writing = False
        self._guard = threading.Lock()  # of the queue and of the flag
        self._write_threads = ThreadPoolExecutor(1, thread_name_prefix="sqlite-write")
        if memory:
            self._reads, self._read_threads = self._writes, self._write_threads
        else:
            self._reads = self._engine(url, options, _READERS, "BEGIN")
            self._read_threads = ThreadPoolExecutor(_READERS, thread_name_prefix="sqlite-read")

    async def write(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run in the writing thread, in an immediate transaction. A cancelled caller does not stop what has begun."""
        unit = _Unit(work, Future())
        with self._guard:
            self._queue.append(unit)
            if not self._writing:
                self._writing = True
                self._write_threads.submit(self._write_queue)
        done: T = await asyncio.wrap_future(unit.done)
        return done

    async def read(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run in a reading thread; the snapshot begins with the first statement."""
        return await asyncio.get_running_loop().run_in_executor(self._read_threads, self._read, work)

    async def close(self) -> None:
        """Let the threads finish what they have, then close the connections."""
        await asyncio.to_thread(self._close)

    def _write_queue(self) -> None:
        while (units := self._take()) is not None:
            try:
                self._write_units(units)
            except Exception as error:  # noqa: BLE001 - it belongs to those who wait, not to this thread
                for unit in units:
                    if not unit.done.done():
                        unit.done.set_exception(error)

    def _take(self) -> list[_Unit] | None:
        """Take all that waits and is still wanted; None ends the thread's turn."""
        with self._guard:
            if not self._queue:
                self._writing = False
                return None
            units = list(self._queue)
            self._queue.clear()
        return [unit for unit in units if unit.done.set_running_or_notify_cancel()]

    def _write_units(self, units: Sequence[_Unit]) -> None:
        """Run units in one transaction; one that raises is undone alone."""
        if not units:
            return
        with self._writes.connect() as connection:  # leaving with an error rolls back
            transaction = connection.begin()
            if len(units) == 1:
                outcomes = [_Outcome(units[0].work(connection), None)]
            else:
                try:
                    outcomes = [_attempt(connection, unit.work) for unit in units]
                except _EndedError:
                    outcomes = []
            committed = bool(outcomes) and self._commit(transaction)
        if not outcomes:
            self._write_singly(units)
            return
        for unit, outcome in zip(units, outcomes, strict=True):
            error = outcome.error or (None if committed else CommitUnknownError())
            if error is not None:
                unit.done.set_exception(error)
            else:
                unit.done.set_result(outcome.result)

    def _write_singly(self, units: Sequence[_Unit]) -> None:
        """Run units that can share no transaction, since one of them ended it; nothing of them is written yet."""
        for unit in units:
            try:
                self._write_units([unit])
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this unit
                unit.done.set_exception(error)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        with self._reads.connect() as connection, connection.begin():
            return work(connection)

    def _commit(self, transaction: sa.RootTransaction) -> bool:
        """Commit; False when it failed on the way, so that nobody knows whether it did."""
        try:
            if self._fault is not None:
                self._fault("before_commit")
            transaction.commit()
            if self._fault is not None:
                self._fault("after_commit")
        except self.errors:
            return False
        return True

    def _close(self) -> None:
        self._write_threads.shutdown()
        self._read_threads.shutdown()
        self._reads.dispose()
        self._writes.dispose()

    def _create_file(self, *_: object) -> None:
        """Create the file for its owner alone; SQLite gives the files beside it the same mode."""
        if self._path is not None and not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    def _engine(self, url: sa.URL, options: dict[str, Any], size: int, begin: str) -> sa.Engine:
        pool: dict[str, Any] = {"poolclass": StaticPool}
        if self._path is not None:
            pool = {"poolclass": QueuePool, "pool_size": size, "max_overflow": 0, "pool_timeout": self._wait_s}
        connect_args = {"check_same_thread": False, "timeout": self._wait_s}
        engine = sa.create_engine(url, connect_args=connect_args, **pool, **options)

        sa.event.listen(engine, "do_connect", self._create_file)

        def connected(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
            _prepare(connection, self._wait_s)

        def begun(connection: sa.Connection) -> None:
            connection.exec_driver_sql(begin)

        sa.event.listen(engine, "connect", connected)
        sa.event.listen(engine, "begin", begun)
        return engine


class _EndedError(Exception):
    """SQLite rolled the whole transaction back, as it does when a disk is full."""


def _attempt(connection: sa.Connection, work: Callable[[sa.Connection], Any]) -> _Outcome:
    """Run one unit under a savepoint; what it raises undoes the unit and becomes its outcome. Errors: `_EndedError`."""
    connection.exec_driver_sql("SAVEPOINT unit")
    try:
        outcome = _Outcome(work(connection), None)
    except Exception as error:  # noqa: BLE001 - raised again where the unit is awaited
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            raise _EndedError from None
        connection.exec_driver_sql("ROLLBACK TO unit")
        outcome = _Outcome(None, error)
    connection.exec_driver_sql("RELEASE unit")
    return outcome


def _prepare(connection: sqlite3.Connection, wait_s: float) -> None:
    """Set up a new connection: no hidden transactions, WAL, every commit on disk, foreign keys on."""
    connection.isolation_level = None  # the driver would begin deferred transactions on its own
    connection.create_function("regate_bytes", 1, _bytes, deterministic=True)
    connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
    _enter_wal(connection, time.monotonic() + wait_s)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # What is deleted is overwritten with zeros: a purge means it. Costs 3 to 6 % of the CPU of a step (measured with
    # states of 20 KB); Debian builds its SQLite so.
    connection.execute("PRAGMA secure_delete = ON")


def _bytes(digits: str | None) -> bytes | None:
    """Stand in for SQLite's own unhex, which came with 3.41: JSON holds no bytes."""
    return None if digits is None else bytes.fromhex(digits)


def _enter_wal(connection: sqlite3.Connection, deadline: float) -> None:
    # Changing the mode needs the file alone, and SQLite does not wait for that: two processes that start at once meet
    # here.
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return
