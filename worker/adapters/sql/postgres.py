"""PostgreSQL behind `Database`: asyncpg, with the same synchronous units of work under `run_sync`.

A unit runs in a task of ours. A caller may be cancelled at any moment, and asyncpg ends a connection whose statement is
cancelled: without that, every cancelled run would cost a connection, and of a cancelled COMMIT nobody would know what
became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction, create_async_engine

from worker.adapters.sql.errors import DATABASE_ERRORS, CommitUnknownError
from worker.adapters.sql.lanes import Lane
from worker.ports.runs import StoreError

__all__ = ["PostgresBackend"]

T = TypeVar("T")

_CONNECTIONS: Final = {Lane.STEPS: 1, Lane.READS: 1, Lane.SINGLE: 3}
"""Connections a process at most, by lane. The writer and the reads batch what waits, so one is enough for each.
Nineteen processes then stay below PostgreSQL's default limit of 100."""

_POOLER: Final = "pooler"
_DIRECT: Final = {"server_settings": {"application_name": "regate", "jit": "off"}}
"""Compiling a statement costs more than it saves."""
_POOLED: Final = {
    "server_settings": {"application_name": "regate"},
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": str,  # no name: nothing is left behind for whoever has the connection next
}
"""Behind a pooler that lends connections for one transaction, which knows neither our statements nor our options."""


class PostgresBackend:
    """One PostgreSQL database."""

    def __init__(
        self, url: sa.URL, options: dict[str, Any], wait_s: float, fault: Callable[[str], None] | None
    ) -> None:
        asyncpg = import_module("asyncpg")  # only who uses PostgreSQL needs its driver
        # Raised while connecting, where SQLAlchemy does not wrap them.
        self.errors: tuple[type[Exception], ...] = (*DATABASE_ERRORS, asyncpg.PostgresError, asyncpg.InterfaceError)
        self._fault = fault
        self._wait_s = wait_s
        self._turns = {lane: asyncio.Semaphore(size) for lane, size in _CONNECTIONS.items()}
        self._running: set[asyncio.Task[Any]] = set()
        url, pooled = _without_pooler(url)
        self._engine = create_async_engine(
            _for_asyncpg(url),
            pool_size=sum(_CONNECTIONS.values()),  # so nobody who has its turn waits for the pool
            max_overflow=0,
            pool_timeout=wait_s,
            connect_args={
                "timeout": min(wait_s, 10.0),
                "command_timeout": wait_s,
                **(_POOLED if pooled else _DIRECT),
            },
            **options,
        )
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    async def write(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run in one READ COMMITTED transaction. A cancelled caller does not stop what has begun."""
        return await self._in_turn(lane, partial(self._write, work))

    async def read(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """Run in one REPEATABLE READ, read-only transaction."""
        return await self._in_turn(lane, partial(self._read, work))

    async def close(self) -> None:
        """Wait for what runs, then close the pool."""
        if self._running:
            await asyncio.wait(self._running)
        await self._engine.dispose()

    async def _in_turn(self, lane: Lane, unit: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the lane, then run a unit to its end. Errors: `StoreError("busy")` when its turn does not come."""
        turn = self._turns[lane]
        if turn.locked():
            try:
                async with asyncio.timeout(self._wait_s):
                    await turn.acquire()
            except TimeoutError:
                raise StoreError("busy") from None
        else:
            await turn.acquire()
        running = asyncio.get_running_loop().create_task(unit())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(lambda _: turn.release())
        return await asyncio.shield(running)  # see above for what breaks otherwise

    async def _write(self, work: Callable[[sa.Connection], T]) -> T:
        async with self._engine.connect() as connection:  # leaving with an error rolls back
            transaction = await connection.begin()
            result = await connection.run_sync(work)
            failure = await self._commit(connection, transaction)
        if failure is not None:
            raise failure
        return result

    async def _read(self, work: Callable[[sa.Connection], T]) -> T:
        async with self._snapshots.connect() as connection, connection.begin():
            return await connection.run_sync(work)

    async def _commit(self, connection: AsyncConnection, transaction: AsyncTransaction) -> CommitUnknownError | None:
        try:
            if self._fault is not None:
                self._fault("before_commit")
            await transaction.commit()
            if self._fault is not None:
                self._fault("after_commit")
        except self.errors:
            await connection.invalidate()
            return CommitUnknownError()
        return None


def _without_pooler(url: sa.URL) -> tuple[sa.URL, bool]:
    """Take our own parameter `pooler=transaction` off. Errors: `StoreError("url")` for any other value."""
    asked = url.query.get(_POOLER)
    if asked not in (None, "transaction"):
        raise StoreError("url")
    return url.difference_update_query([_POOLER]), asked is not None


def _for_asyncpg(url: sa.URL) -> sa.URL:
    """Name the driver, and libpq's `sslmode` as asyncpg calls it: the words are the same."""
    query = {("ssl" if name == "sslmode" else name): value for name, value in url.query.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)
