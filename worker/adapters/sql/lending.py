"""Drivers' own connections as SQLAlchemy's, for one unit of work inside a transaction that is somebody else's.

SQLAlchemy sets up what it opens: it registers functions and codecs, asks the server for its version, rolls back. None
of that may happen to a connection that is borrowed. So the engine is put together here without those hooks, and sees
the connection through a proxy that has cursors and cannot end anything. Cursors are the driver's plain ones, whatever
factories for rows and cursors the connection has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import NullPool

__all__ = ["is_async", "lend", "lend_async"]


def is_async(connection: object) -> bool | None:
    """Tell whether a driver's connection is awaited; None when it is none that can be lent."""
    driver = _driver(connection)
    return None if driver is None else driver.is_async


@contextmanager
def lend(connection: object) -> Iterator[sa.Connection]:
    """Give a sync driver's connection as SQLAlchemy's. Used on this thread, as the connection is."""
    driver = _found(connection)
    lent = _Lent(connection, driver.cursor)
    with _with_text(connection), _engine(driver.url, lambda: lent).connect() as own:
        yield own


@asynccontextmanager
async def lend_async(connection: object) -> AsyncIterator[AsyncConnection]:
    """Give an async driver's connection as SQLAlchemy's."""
    driver = _found(connection)
    dialect = _dialect(driver.url)

    async def give() -> _AsyncLent:
        return _AsyncLent(connection, driver.cursor)

    def adapted() -> Any:
        made = dialect.connect(async_creator_fn=give, **driver.options)
        if driver.url == _ASYNCPG:
            made.autocommit = True  # else it would begin a transaction inside of the caller's
        return made

    async with AsyncEngine(_engine(driver.url, adapted)).connect() as own:
        yield own


class _Lent:
    """A borrowed connection as SQLAlchemy sees it: everything but the means to end its transaction, or itself."""

    def __init__(self, connection: object, cursor: Callable[[Any], Any]) -> None:
        self._connection = connection
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, *_: object, **__: object) -> Any:
        return self._cursor(self._connection)

    def commit(self) -> Any:
        """Leave it to the owner."""

    def rollback(self) -> Any:
        """Leave it to the owner."""

    def close(self, **_: object) -> Any:
        """Leave it to the owner."""


class _AsyncLent(_Lent):
    """The same, awaited."""

    async def commit(self) -> None:
        """Leave it to the owner."""

    async def rollback(self) -> None:
        """Leave it to the owner."""

    async def close(self, **_: object) -> None:
        """Leave it to the owner."""

    def terminate(self) -> None:
        """Leave it to the owner."""


def _engine(url: str, creator: Callable[[], Any]) -> Engine:
    """Make an engine of one connection. `create_engine` would add the hooks; one costs about 0.1 ms."""
    dialect = _dialect(url)
    pool = NullPool(creator, reset_on_return=None, dialect=dialect)
    options = {"compiled_cache": _compiled(url)}
    return Engine(pool, dialect, sa.make_url(url), hide_parameters=True, execution_options=options)


@cache
def _dialect(url: str) -> sa.Dialect:
    kind: Any = sa.make_url(url).get_dialect()
    dialect: sa.Dialect = kind(dbapi=kind.import_dbapi())
    return dialect


@cache
def _compiled(url: str) -> dict[Any, Any]:
    """Give the compiled statements of a dialect: the handful that runs on borrowed connections."""
    return {}


@contextmanager
def _with_text(connection: object) -> Iterator[None]:
    """Read text as text meanwhile: of sqlite3 alone that is a matter of the connection, not of the cursor."""
    if not isinstance(connection, sqlite3.Connection) or connection.text_factory is str:
        yield
        return
    before = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = before


# --- Drivers ------------------------------------------------------------------------------------------------


def _sqlite_cursor(connection: Any) -> Any:
    cursor = sqlite3.Connection.cursor(connection, sqlite3.Cursor)  # a subclass may have another `cursor`
    cursor.row_factory = None
    return cursor


def _psycopg_cursor(connection: Any) -> Any:
    psycopg = import_module("psycopg")
    return psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)


def _async_psycopg_cursor(connection: Any) -> Any:
    psycopg = import_module("psycopg")
    return psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row)


def _psycopg2_cursor(connection: Any) -> Any:
    return connection.cursor(cursor_factory=import_module("psycopg2.extensions").cursor)


def _no_cursor(_: Any) -> Any:
    raise AssertionError("asyncpg has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """How the connections of a driver become SQLAlchemy's. `options` are those of the dialect's `connect`."""

    url: str
    cursor: Callable[[Any], Any]
    options: dict[str, Any]
    is_async: bool = False


_ASYNCPG: Final = "postgresql+asyncpg://"
_asyncpg: Final = _Driver(
    url=_ASYNCPG,
    cursor=_no_cursor,
    # Nothing is left behind on the connection, which a pooler may lend to others.
    options={"prepared_statement_cache_size": 0, "prepared_statement_name_func": str},
    is_async=True,
)
_DRIVERS: Final = {
    ("sqlite3", "Connection"): _Driver(url="sqlite://", cursor=_sqlite_cursor, options={}),
    ("psycopg", "Connection"): _Driver(url="postgresql+psycopg://", cursor=_psycopg_cursor, options={}),
    ("psycopg2", "connection"): _Driver(url="postgresql+psycopg2://", cursor=_psycopg2_cursor, options={}),
    ("psycopg", "AsyncConnection"): _Driver(
        url="postgresql+psycopg_async://", cursor=_async_psycopg_cursor, options={}, is_async=True
    ),
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
}
"""By the package and the name of the connection's class: no driver is imported to look at what is not its own."""


def _driver(connection: object) -> _Driver | None:
    names = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__)
    return next((_DRIVERS[name] for name in names if name in _DRIVERS), None)


def _found(connection: object) -> _Driver:
    driver = _driver(connection)
    if driver is None:
        raise AssertionError("ask `is_async` first")
    return driver
