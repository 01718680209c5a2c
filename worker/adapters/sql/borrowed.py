"""Runs written in somebody else's transaction: on their connection, before their commit.

Nothing here commits, rolls back or closes anything of theirs. What is written stands or falls together, by a savepoint;
after an error or a conflict the caller's transaction is as it was and goes on.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from worker.adapters.sql.create import create_run
from worker.adapters.sql.errors import DATABASE_ERRORS, as_store_error, state_of
from worker.adapters.sql.lending import is_async, lend, lend_async
from worker.adapters.sql.tables import key_ring
from worker.ports.records import NewRun, RunRow
from worker.ports.runs import BorrowError, StoreError

__all__ = ["create_borrowed", "create_borrowed_async"]

_ERRORS: Final = (*DATABASE_ERRORS, sqlite3.Error)
"""A connection of sqlite3 that is asked how it is raises what nobody wraps."""


def create_borrowed(connection: object, new: NewRun) -> tuple[RunRow, bool]:
    """Write a run as `create_run` does, on a sync connection and on this thread; see the port for the errors.

    Shape: an SQLAlchemy `Connection`, `Session` or `scoped_session`, or a connection of sqlite3, psycopg or psycopg2.
    """
    try:
        if isinstance(connection, Session | scoped_session):
            return _create(connection.connection(), new)
        if isinstance(connection, sa.Connection):
            return _create(connection, new)
        if is_async(connection) is False:
            with lend(connection) as own:
                return _create(own, new)
    except _ERRORS as error:
        failure = _as_error(error)
    else:
        failure = BorrowError("unsupported")
    raise failure


async def create_borrowed_async(connection: object, new: NewRun) -> tuple[RunRow, bool]:
    """Write a run on an async connection; any other is used here and now, as `create_borrowed` does.

    Shape: an SQLAlchemy `AsyncConnection`, `AsyncSession` or `async_scoped_session`, or a connection of asyncpg or of
    psycopg.
    """
    try:
        if isinstance(connection, AsyncSession | async_scoped_session):
            return await (await connection.connection()).run_sync(_create, new)
        if isinstance(connection, AsyncConnection):
            return await connection.run_sync(_create, new)
        if is_async(connection):
            async with lend_async(connection) as own:
                return await own.run_sync(_create, new)
    except _ERRORS as error:
        failure = _as_error(error)
    else:
        return create_borrowed(connection, new)
    raise failure


def _create(connection: sa.Connection, new: NewRun) -> tuple[RunRow, bool]:
    """Write a run under a savepoint. On PostgreSQL that fails outside of a transaction, which SQLite does not tell.

    Locks: as `create_run`; they are kept until the caller's transaction ends.
    """
    if connection.dialect.name == "sqlite":
        _see_to_transaction(connection)
    elif connection.dialect.name != "postgresql":
        raise BorrowError("unsupported")
    with connection.begin_nested():
        created = create_run(connection, new)
        # Not first: on SQLite a transaction that began with a read cannot wait for another one's write.
        if connection.execute(_RING, {"id": new.key_id}).one_or_none() is None:
            raise BorrowError("other_database")  # it has our tables, and none of its processes could open the run
        return created


_RING: Final = sa.select(key_ring.c.id).where(key_ring.c.id == sa.bindparam("id", type_=sa.Text))


def _see_to_transaction(connection: sa.Connection) -> None:
    """Have a transaction open on SQLite, where a savepoint outside of one would commit by itself.

    sqlite3 in its default mode begins one before the first write, but not before a savepoint; then it is begun here in
    the same words. In autocommit nobody would.
    """
    if not connection.in_transaction():
        connection.begin()  # as SQLAlchemy would by itself with the first statement; listeners may send a BEGIN
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return
    autocommit = getattr(getattr(driver, "_conn", driver), "autocommit", None)  # aiosqlite does not pass it on
    if driver.isolation_level is None or autocommit is True:
        raise BorrowError("no_transaction")
    connection.exec_driver_sql(f"BEGIN {driver.isolation_level}")


# --- Errors -------------------------------------------------------------------------------------------------

_STATES: Final = {
    "25P01": "no_transaction",
    "25P02": "aborted",
    "25006": "not_permitted",  # the transaction is read-only
    "42501": "not_permitted",
    "3F000": "other_database",
    "42P01": "other_database",
    "42703": "other_database",
}
"""PostgreSQL's states that speak of the connection, not of the run."""
_SQLITE_SAYINGS: Final = {
    "no such": "other_database",
    "has no column": "other_database",
    "same thread": "other_thread",
    "closed database": "closed",
    "readonly database": "not_permitted",
}
"""Parts of messages of SQLite and sqlite3, which give these no code of their own."""


def _as_error(error: Exception) -> StoreError:
    """Give the `BorrowError` for what is wrong with the connection, else what any unit of work would end with."""
    problem = _problem(error)
    return as_store_error(error) if problem is None else BorrowError(problem)


def _problem(error: Exception) -> str | None:
    if isinstance(error, sa.exc.ResourceClosedError):
        return "closed"
    if isinstance(error, sa.exc.PendingRollbackError):
        return "aborted"
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return next((problem for part, problem in _SQLITE_SAYINGS.items() if part in str(cause)), None)
    return _STATES.get(state_of(cause))
