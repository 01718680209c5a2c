"""One `Database` for both engines: a unit of work is a plain function of a `sqlalchemy.Connection`.

SQLite: one thread and one connection write, others read. PostgreSQL: asyncpg, the function runs under `run_sync`.
No transaction is ever open while the caller's code awaits something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

import sqlalchemy as sa

from worker.adapters.sql import (
    catalogue_tables,
    tables,  # noqa: F401 - `create_all` needs every table to be known
)
from worker.adapters.sql.clock import CLOCK_OPTION, Clock
from worker.adapters.sql.errors import RepeatableError, as_store_error
from worker.adapters.sql.lanes import Lane
from worker.adapters.sql.postgres import PostgresBackend
from worker.adapters.sql.schema import metadata
from worker.adapters.sql.sqlite import SqliteBackend
from worker.ports.runs import StoreError

__all__ = ["Database"]

P = ParamSpec("P")
T = TypeVar("T")

_TRIES = 3
"""Tries of a transaction that was rolled back for an outside reason: a dead pooled connection, then one deadlock."""
_WAIT_S = 30.0
"""Seconds that a statement waits for a lock: as long as a lease, since afterwards the work is somebody else's."""


class _Backend(Protocol):
    """How one engine runs a unit of work."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Everything that its driver raises."""
        ...

    async def write(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run it in one transaction. Errors: `errors` before COMMIT, `CommitUnknownError` inside of it."""
        ...

    async def read(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run it on one snapshot."""
        ...

    async def close(self) -> None:
        """Wait for what runs, then close every connection."""
        ...


class Database:
    """A database and its clock. Safe to use from one event loop; several instances may share one database."""

    def __init__(self, backend: _Backend, clock: Clock, dialect: str, lane: Lane = Lane.SINGLE) -> None:
        self._backend = backend
        self._clock = clock
        self._lane = lane
        self.dialect = dialect

    def on(self, lane: Lane) -> Self:
        """Give the same database, asked on another lane. Closing either closes both."""
        return type(self)(self._backend, self._clock, self.dialect, lane)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        echo: bool = False,
        wait_s: float = _WAIT_S,
        fault: Callable[[str], None] | None = None,
    ) -> Self:
        """Open a database without connecting yet.

        Shape: `sqlite:///path`, `sqlite://` (in memory, gone with this object), `postgresql://…` (with or without
        `+asyncpg`). `fault` is called with `before_commit` and `after_commit` in every write; a `ConnectionError`
        from it stands for a connection that died there.
        Units: `wait_s` is the longest wait of one statement.
        Errors: `StoreError("url")`.
        """
        try:
            parsed = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            parsed = None
        engine = parsed.get_backend_name() if parsed is not None else ""
        if parsed is None or engine not in ("sqlite", "postgresql"):
            raise StoreError("url")
        clock = Clock()
        options = {"echo": echo, "hide_parameters": True, "execution_options": {CLOCK_OPTION: clock}}
        if engine == "sqlite":
            return cls(SqliteBackend(parsed, options, wait_s, fault), clock, engine)
        return cls(PostgresBackend(parsed, options, wait_s, fault), clock, engine)

    async def transact(
        self, work: Callable[Concatenate[sa.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work(connection, …)` in one write transaction: committed when it returns, rolled back when it raises.

        `work` may run again from its start, so it must not change anything but the database. What it raises itself
        passes through. On SQLite the transaction is immediate: nobody else writes meanwhile. A caller that is cancelled
        stops waiting; what has begun goes on to its end.
        Errors: `StoreError`; only `CommitUnknownError` leaves open whether something was written.
        """
        return await self._run(self._backend.write, partial(_call, work, args, kwargs))

    async def read(self, work: Callable[Concatenate[sa.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(connection, …)` on one snapshot: everything it reads belongs to the same moment.

        Errors: `StoreError`.
        """
        return await self._run(self._backend.read, partial(_call, work, args, kwargs))

    async def create_all(self) -> None:
        """Create the whole schema in an empty database, without migrations. For what lives in memory."""
        await self.transact(_create_all)

    def monotonic(self) -> float:
        """Read the monotonic clock of this process, in seconds."""
        return self._clock.monotonic()

    def shift_clock(self, seconds: float) -> None:
        """Let this object see the database's clock `seconds` later than it is. For tests."""
        self._clock.shift_s = seconds

    async def close(self) -> None:
        """Wait for running work and close all connections."""
        await self._backend.close()

    async def _run(
        self, run: Callable[[Callable[[sa.Connection], T], Lane], Awaitable[T]], work: Callable[[sa.Connection], T]
    ) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                return await run(work, self._lane)
            except self._backend.errors as error:
                failure = as_store_error(error)
            if tries == _TRIES or not isinstance(failure, RepeatableError):
                raise failure


def _call(work: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object], connection: sa.Connection) -> T:
    return work(connection, *args, **kwargs)


def _create_all(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    connection.execute(sa.insert(catalogue_tables.catalogue_version).values(id=1, version=1))
    connection.execute(sa.insert(catalogue_tables.policy).values(name="data_class_enforcement", value="enforce"))
