"""Callers who have a transaction open of their own, on every kind of connection that a run can be written on."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import asyncpg
import psycopg
import psycopg2
import psycopg2.extensions
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

__all__ = ["ON_POSTGRES", "ON_SQLITE", "PARAMS", "Caller", "calling"]

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A connection to give to `enqueue`, and what its owner does with it, whatever its kind."""

    connection: Any
    execute: Callable[[str], Awaitable[Rows]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


def calling(kind: str, url: str, *, autocommit: bool = False) -> AbstractAsyncContextManager[Caller]:
    """Open a connection of a kind to a database of regate's URL; closed at the end, which ends its transaction."""
    return {**ON_SQLITE, **ON_POSTGRES}[kind](url, autocommit)


def _sync(connection: Any, execute: Callable[[str], Rows]) -> Caller:
    async def run(statement: str) -> Rows:
        return execute(statement)

    async def commit() -> None:
        connection.commit()

    async def rollback() -> None:
        connection.rollback()

    return Caller(connection=connection, execute=run, commit=commit, rollback=rollback)


# --- SQLAlchemy's


def _rows(result: sa.CursorResult[Any]) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


def _named(driver: str, url: str) -> sa.URL:
    return sa.make_url(url).set(drivername=driver)


def _options(autocommit: bool) -> dict[str, Any]:
    return {"isolation_level": "AUTOCOMMIT"} if autocommit else {}


@asynccontextmanager
async def _connection(driver: str, session: bool, url: str, autocommit: bool) -> AsyncIterator[Caller]:
    engine = sa.create_engine(_named(driver, url), **_options(autocommit))
    opened: Session | sa.Connection = Session(engine) if session else engine.connect()
    try:
        with opened:
            yield _sync(opened, lambda statement: _rows(opened.execute(sa.text(statement))))  # type: ignore[arg-type]
    finally:
        engine.dispose()


@asynccontextmanager
async def _async_connection(driver: str, session: bool, url: str, autocommit: bool) -> AsyncIterator[Caller]:
    engine = create_async_engine(_named(driver, url), **_options(autocommit))
    opened: AsyncSession | AsyncConnection = AsyncSession(engine) if session else engine.connect()
    try:
        async with opened:

            async def run(statement: str) -> Rows:
                return _rows(await opened.execute(sa.text(statement)))  # type: ignore[arg-type]

            yield Caller(connection=opened, execute=run, commit=opened.commit, rollback=opened.rollback)
    finally:
        await engine.dispose()


# --- drivers' own


@contextmanager
def _closing(connection: Any) -> Any:
    try:
        yield connection
    finally:
        connection.close()


def _fetched(connection: Any) -> Callable[[str], Rows]:
    def execute(statement: str) -> Rows:
        cursor = connection.cursor()
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    return execute


@asynccontextmanager
async def _sqlite3(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    connection = sqlite3.connect(str(sa.make_url(url).database), isolation_level=None if autocommit else "DEFERRED")
    with _closing(connection):
        yield _sync(connection, _fetched(connection))


@asynccontextmanager
async def _psycopg(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    with _closing(psycopg.connect(url, autocommit=autocommit)) as connection:
        yield _sync(connection, _fetched(connection))


@asynccontextmanager
async def _psycopg2(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    with _closing(psycopg2.connect(url)) as connection:
        connection.autocommit = autocommit
        yield _sync(connection, _fetched(connection))


@asynccontextmanager
async def _async_psycopg(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=autocommit) as connection:

        async def run(statement: str) -> Rows:
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []

        yield Caller(connection=connection, execute=run, commit=connection.commit, rollback=connection.rollback)
        await connection.rollback()


@asynccontextmanager
async def _asyncpg(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    """It has no transaction of its own accord: one is begun before the first statement, and again after its end."""
    connection = await asyncpg.connect(url)
    begun: list[Any] = []

    async def begin() -> None:
        begun.append(connection.transaction())
        await begun[-1].start()

    async def run(statement: str) -> Rows:
        return [tuple(row) for row in await connection.fetch(statement)]

    async def commit() -> None:
        await begun.pop().commit()
        await begin()

    async def rollback() -> None:
        await begun.pop().rollback()
        await begin()

    try:
        if not autocommit:
            await begin()
        yield Caller(connection=connection, execute=run, commit=commit, rollback=rollback)
    finally:
        await connection.close()


Opens = Callable[[str, bool], AbstractAsyncContextManager[Caller]]
ON_SQLITE: Final[Mapping[str, Opens]] = {
    "connection": partial(_connection, "sqlite", False),
    "session": partial(_connection, "sqlite", True),
    "async-connection": partial(_async_connection, "sqlite+aiosqlite", False),
    "async-session": partial(_async_connection, "sqlite+aiosqlite", True),
    "sqlite3": _sqlite3,
}
ON_POSTGRES: Final[Mapping[str, Opens]] = {
    "connection-psycopg": partial(_connection, "postgresql+psycopg", False),
    "connection-psycopg2": partial(_connection, "postgresql+psycopg2", False),
    "session-psycopg": partial(_connection, "postgresql+psycopg", True),
    "async-connection-asyncpg": partial(_async_connection, "postgresql+asyncpg", False),
    "async-session-psycopg": partial(_async_connection, "postgresql+psycopg_async", True),
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "async-psycopg": _async_psycopg,
    "asyncpg": _asyncpg,
}
PARAMS: Final = [*ON_SQLITE, *(pytest.param(kind, marks=pytest.mark.postgres) for kind in ON_POSTGRES)]
