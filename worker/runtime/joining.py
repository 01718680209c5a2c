"""Runs that commit with the data of whoever asks for them: what may go wrong with their connection, in words."""

from __future__ import annotations

from typing import Final

from worker.ports.records import NewRun, RunRow
from worker.ports.runs import BorrowError, RunStore
from worker.runtime.errors import ConflictError, InvalidError

__all__ = ["join", "join_blocking", "must_be_same"]

_SAID: Final = {
    "unsupported": (
        "this is no connection that a run can be written on; give one of SQLAlchemy's, sync or async, or a driver's own"
    ),
    "no_transaction": "there is no open transaction on this connection: it is in autocommit mode; begin one first",
    "aborted": "the transaction on this connection has failed already; roll it back first",
    "closed": "this connection is closed",
    "other_thread": "this connection belongs to another thread",
    "other_database": "this connection's database is not the one that regate works on",
    "not_permitted": "this connection may not write regate's tables",
}


async def join(store: RunStore, connection: object, new: NewRun) -> tuple[RunRow, bool]:
    """Write a run in the transaction that is open on `connection`; a sync one is used on this thread.

    Errors: `InvalidError` for a connection that cannot be used, `ConflictError`, `StoreError`. The transaction goes on.
    """
    try:
        row, is_new = await store.create_in(connection, new)
    except BorrowError as error:
        failure = _invalid(error)
    else:
        return must_be_same(row, new), is_new
    raise failure


def join_blocking(store: RunStore, connection: object, new: NewRun) -> tuple[RunRow, bool]:
    """Do the same on any thread, for sync connections alone."""
    try:
        row, is_new = store.create_in_blocking(connection, new)
    except BorrowError as error:
        failure = _invalid(error)
    else:
        return must_be_same(row, new), is_new
    raise failure


def must_be_same(row: RunRow, new: NewRun) -> RunRow:
    """Give the row when it is of the same request. Errors: `ConflictError`."""
    if row.body != new.body:
        raise ConflictError("idempotency", "this idempotency key was used for another request", uuid=row.uuid)
    return row


def _invalid(error: BorrowError) -> InvalidError:
    return InvalidError(f"connection_{error.problem}", _SAID[error.problem])
