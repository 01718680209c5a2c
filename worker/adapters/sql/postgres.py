"""PostgreSQL behind `Database`: asyncpg, with the same synchronous units of work under `run_sync`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction, create_async_engine

from worker.adapters.sql.errors import DATABASE_ERRORS, CommitUnknownError

__all__ = ["PostgresBackend"]

T = TypeVar("T")

_CONNECTIONS: Final = 5
"""Connections a process: one for the group-commit writer, one for batched reads, the rest for what comes singly.
Eighteen processes then stay below PostgreSQL's default limit of 100."""


class PostgresBackend:
    """One PostgreSQL database."""

    def __init__(
        self, url: sa.URL, options: dict[str, Any], wait_s: float, fault: Callable[[str], None] | None
    ) -> None:
        asyncpg = import_module("asyncpg")  # only who uses PostgreSQL needs its driver
        # Raised while connecting, where SQLAlchemy does not wrap them.
        self.errors: tuple[type[Exception], ...] = (*DATABASE_ERRORS, asyncpg.PostgresError, asyncpg.InterfaceError)
        self._fault = fault
        self._engine = create_async_engine(
            _for_asyncpg(url),
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=wait_s,
            connect_args={
                "timeout": min(wait_s, 10.0),
                "command_timeout": wait_s,
                "server_settings": {"application_name": "regate", "jit": "off"},  # compiling costs more than it saves
            },
            **options,
        )
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run in one READ COMMITTED transaction."""
        async with self._engine.connect() as connection:  # leaving with an error rolls back
            transaction = await connection.begin()
            result = await connection.run_sync(work)
            failure = await self._commit(connection, transaction)
        if failure is not None:
            raise failure
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run in one REPEATABLE READ, read-only transaction."""
        async with self._snapshots.connect() as connection, connection.begin():
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close the pool."""
        await self._engine.dispose()

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


def _for_asyncpg(url: sa.URL) -> sa.URL:
    """Name the driver, and libpq's `sslmode` as asyncpg calls it: the words are the same."""
    query = {("ssl" if name == "sslmode" else name): value for name, value in url.query.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)
