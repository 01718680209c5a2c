"""Driver errors become `StoreError`s here, and only here. None of them keeps a message, a parameter or a cause.

StoreError               port: the database refused or failed
├── RefusedError         this data cannot be stored: `integrity` or `data`; rolled back
├── RepeatableError      `conflict` (chosen as a deadlock's victim) or `disconnected`; rolled back, may be repeated
└── CommitUnknownError   the connection failed inside COMMIT: written or not, only a fresh look tells
"""

from __future__ import annotations

import sqlalchemy as sa

from worker.ports.runs import StoreError

__all__ = [
    "DATABASE_ERRORS",
    "CommitUnknownError",
    "LockedError",
    "RefusedError",
    "RepeatableError",
    "as_store_error",
    "state_of",
]

DATABASE_ERRORS = (sa.exc.SQLAlchemyError, OSError, OverflowError, UnicodeError)
"""What a statement can raise. Integers and texts that a driver cannot encode arrive unwrapped by SQLAlchemy."""

_ENDED = frozenset({"08003", "08006", "25P03", "57P01", "57P02"})
"""States of a connection that was there and is gone: lost, idle in a transaction for too long, ended by the server."""

_FOR_NOW = frozenset({"25006", "57014"})
"""States of a moment: read-only, as a server that hands over or has a full disk; cancelled from outside."""

_CLOSED = ("28", "3D", "53", "55000")
"""States of a server that lets nobody in, or has no room: credentials, database, resources, connections not allowed."""

_FULL = ("SQLITE_FULL", "SQLITE_IOERR")
"""What SQLite says of a disk that is full or failing, as PostgreSQL says 53100: the same work may succeed later."""


class RefusedError(StoreError):
    """The data broke a constraint or cannot be represented. Nothing was written."""


class LockedError(StoreError):
    """Somebody kept a lock for longer than this work waits for one. Nothing was written; other work may go on."""

    def __init__(self) -> None:
        super().__init__("busy")


class RepeatableError(StoreError):
    """The transaction was rolled back for a reason that lies outside of it. Nothing was written."""


class CommitUnknownError(StoreError):
    """The connection failed while it committed. The transaction is either whole or absent."""

    def __init__(self) -> None:
        super().__init__("commit_unknown")


def as_store_error(error: Exception) -> StoreError:
    """Give the `StoreError` for a driver's error. Raise it outside of the `except` block, so that no context stays."""
    if isinstance(error, sa.exc.DBAPIError):
        return _from_driver(error)
    if state_of(error) in _ENDED:
        return RepeatableError("disconnected")  # while it connected, where nothing wraps it
    if isinstance(error, OverflowError | UnicodeError | sa.exc.StatementError):
        return RefusedError("data")
    if isinstance(error, sa.exc.TimeoutError):
        return StoreError("busy")
    if isinstance(error, sa.exc.SQLAlchemyError):
        return StoreError("database")
    return StoreError("unavailable")


def _from_driver(error: sa.exc.DBAPIError) -> StoreError:
    """Read the SQLSTATE where there is one (PostgreSQL), else SQLAlchemy's class of the error."""
    state = state_of(error.orig)
    if error.connection_invalidated or state in _ENDED or state.startswith(("08", "57P")):
        return RepeatableError("disconnected")
    if state in ("40001", "40P01"):
        return RepeatableError("conflict")
    if state.startswith(_CLOSED) or state in _FOR_NOW:
        return StoreError("unavailable")
    if isinstance(error, sa.exc.IntegrityError) or state.startswith("23"):
        return RefusedError("integrity")
    # asyncpg refuses an argument it cannot encode as an InterfaceError without a state.
    client_side = isinstance(error, sa.exc.InterfaceError) and not state
    if client_side or isinstance(error, sa.exc.DataError) or state.startswith("22"):
        return RefusedError("data")
    name = getattr(error.orig, "sqlite_errorname", "")
    if state == "55P03":
        return LockedError()
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError("busy")
    if name in ("SQLITE_TOOBIG", "SQLITE_MISMATCH"):
        return RefusedError("data")
    if name.startswith(_FULL):
        return StoreError("unavailable")
    return StoreError("database")


def state_of(error: BaseException | None) -> str:
    """Give a driver's error's SQLSTATE, empty where there is none. psycopg2 has its own name for it."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
