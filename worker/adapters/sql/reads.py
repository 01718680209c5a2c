"""Reads of runs, and the service that lets many waiting reads share one transaction. None of them opens a payload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy as sa

from codec.vocabulary import Origin, RunStatus, TerminationReason
from worker.adapters.sql.batch import Batch
from worker.adapters.sql.engine import Database
from worker.adapters.sql.errors import RefusedError
from worker.adapters.sql.lanes import Lane
from worker.adapters.sql.rows import (
    AUDIT_COLUMNS,
    DOC_COLUMNS,
    ENTRY_COLUMNS,
    INBOX_COLUMNS,
    RUN_COLUMNS,
    SOURCE_COLUMNS,
    run_row,
)
from worker.adapters.sql.tables import audit, doc, inbox, journal, run, run_source
from worker.ports.records import AuditRow, Document, EntryRow, InboxRow, RunFilter, RunRow, SourceRow
from worker.ports.runs import StoreError

__all__ = [
    "ReadService",
    "list_audit",
    "list_runs",
    "read_answer",
    "read_document",
    "read_entries",
    "read_run",
    "read_sources",
]

P = ParamSpec("P")
T = TypeVar("T")

# Built once: making a statement of so many columns costs more than running it.
_WANTED, _OF = sa.bindparam("wanted", type_=sa.Text), sa.bindparam("of", type_=sa.BigInteger)
_RUN: Final = sa.select(*RUN_COLUMNS).where(run.c.uuid == _WANTED)
_ENTRIES: Final = (
    sa.select(*ENTRY_COLUMNS)
    .where(journal.c.run_uid == _OF, journal.c.seq > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(journal.c.seq)
)
_DOCUMENT: Final = sa.select(*DOC_COLUMNS).where(doc.c.run_uid == _OF, doc.c.kind == _WANTED)
_ANSWER: Final = sa.select(*INBOX_COLUMNS).where(inbox.c.run_uid == _OF, inbox.c.question == _WANTED)
_SOURCES: Final = (
    sa.select(*SOURCE_COLUMNS).where(run_source.c.run_uid == _OF).order_by(run_source.c.kind, run_source.c.source_uid)
)


def read_run(connection: sa.Connection, uuid: str) -> RunRow | None:
    """Read one row. Index: the unique uuid."""
    row = connection.execute(_RUN, {"wanted": uuid}).one_or_none()
    return None if row is None else run_row(row)


def list_runs(connection: sa.Connection, wanted: RunFilter) -> list[RunRow]:
    """Read rows, newest first. Locks nothing.

    Index: with statuses ix_run_status_uid, then the primary key; else the primary key backwards (of an owner his part
    of uq_run_owner_idempotency), so that a filter which fits few reads far.
    """
    statuses, conditions = _filtered(wanted)
    if statuses is not None and wanted.limit is not None:
        return _newest(connection, statuses, conditions, wanted.limit)
    statement = sa.select(*RUN_COLUMNS).where(*conditions).order_by(run.c.uid.desc()).limit(wanted.limit)
    if statuses is not None:
        statement = statement.where(run.c.status.in_([status.value for status in statuses]))
    return [run_row(row) for row in connection.execute(statement)]


def _filtered(wanted: RunFilter) -> tuple[list[RunStatus] | None, list[sa.ColumnElement[bool]]]:
    """Give the statuses to list, None for all, and the other conditions.

    Dead are failed runs that can go on: what is stored can be read, and nobody requeued them yet (ix_run_lineage_run).
    """
    statuses = list(wanted.statuses) if wanted.statuses else None
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.since is not None:
        conditions.append(run.c.created_at >= wanted.since)
    if wanted.owner is not None:
        conditions.append(run.c.owner == wanted.owner)
    if wanted.lineage_run is not None:
        conditions.append(run.c.lineage_run == wanted.lineage_run)
    if wanted.dead:
        later = run.alias("later")
        requeued = sa.exists().where(later.c.lineage_run == run.c.uuid, later.c.origin == Origin.REQUEUE.value)
        conditions += [run.c.reason != TerminationReason.CORRUPT.value, ~requeued]
        statuses = [status for status in statuses or [RunStatus.FAILED] if status is RunStatus.FAILED]
    return statuses, conditions


_LISTED: Final = Batch(uid=sa.BigInteger)


def _newest(
    connection: sa.Connection, statuses: Iterable[RunStatus], conditions: Sequence[sa.ColumnElement[bool]], limit: int
) -> list[RunRow]:
    """Read the newest rows of some statuses: for each the newest uids first, then the rows of the newest of these.

    Told as a range and ordered by it: with an equality, a planner may read the primary key backwards until the limit is
    reached, which for a rare status is all of it.
    """
    uids: list[int] = []
    for status in statuses:
        found = sa.select(run.c.uid).where(run.c.status.between(status.value, status.value), *conditions)
        ordered = found.order_by(run.c.status.desc(), run.c.uid.desc()).limit(limit)
        uids.extend(connection.execute(ordered).scalars())
    if not uids:
        return []
    newest = sorted(uids, reverse=True)[:limit]
    parameters = _LISTED.parameters(connection.dialect.name, [(uid,) for uid in newest])
    rows = connection.execute(_listed_statement(connection.dialect.name), parameters)
    return [run_row(row) for row in rows]


@cache
def _listed_statement(dialect: str) -> sa.Select[Any]:
    listed = _LISTED.source(dialect)
    return sa.select(*RUN_COLUMNS).join(listed, run.c.uid == listed.c.uid).order_by(run.c.uid.desc())


def read_entries(connection: sa.Connection, run_uid: int, after: int) -> list[EntryRow]:
    """Read journal rows after a sequence. Index: the primary key, in its order."""
    rows = connection.execute(_ENTRIES, {"of": run_uid, "after": after})
    return [EntryRow(**row._mapping) for row in rows]


def read_document(connection: sa.Connection, run_uid: int, kind: str) -> Document | None:
    """Read one document. Index: the primary key."""
    row = connection.execute(_DOCUMENT, {"of": run_uid, "wanted": kind}).one_or_none()
    return None if row is None else Document(**row._mapping)


def read_answer(connection: sa.Connection, run_uid: int, question: str) -> InboxRow | None:
    """Read the answer to a question. Index: the primary key."""
    row = connection.execute(_ANSWER, {"of": run_uid, "wanted": question}).one_or_none()
    return None if row is None else InboxRow(**row._mapping)


def read_sources(connection: sa.Connection, run_uid: int) -> list[SourceRow]:
    """Read the carried sources, by kind and uid. Index: the primary key."""
    rows = connection.execute(_SOURCES, {"of": run_uid})
    return [SourceRow(**row._mapping) for row in rows]


def list_audit(connection: sa.Connection, run_uuid: str | None, since: float | None) -> list[AuditRow]:
    """Read the audit, oldest first. Locks nothing.

    Index: ix_audit_run or ix_audit_at. The order is that of the latter: by uid alone a planner may choose to read all.
    """
    statement = sa.select(*AUDIT_COLUMNS).order_by(audit.c.at, audit.c.uid)
    if run_uuid is not None:
        statement = statement.where(audit.c.run == run_uuid)
    if since is not None:
        statement = statement.where(audit.c.at >= since)
    return [AuditRow(**row._mapping) for row in connection.execute(statement)]


_MOST_READS: Final = 256
"""Reads in one transaction. With more the first ones would wait long for the last one's rows."""


@dataclass(frozen=True, slots=True)
class _Read:
    work: Callable[[sa.Connection], Any]
    answer: asyncio.Future[Any]


class ReadService:
    """Serves small reads of one event loop: those that queue up during a transaction share the next one.

    A read that fails fails alone, unless the database itself does. A waiter that is cancelled is forgotten.
    """

    def __init__(self, database: Database) -> None:
        self._database = database.on(Lane.READS)
        self._queue: list[_Read] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, work: Callable[Concatenate[sa.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(connection, …)` with others on one snapshot. Errors: `StoreError`, and what `work` raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._queue.append(_Read(lambda connection: work(connection, *args, **kwargs), answer))
        if self._task is None:
            self._task = loop.create_task(self._serve())  # kept here; `close` waits for it
        return await answer

    async def close(self) -> None:
        """Serve what waits, then return."""
        while self._task is not None:
            await self._task

    async def _serve(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:_MOST_READS], self._queue[_MOST_READS:]
                await self._serve_batch([read for read in batch if not read.answer.done()])
        finally:
            self._task = None

    async def _serve_batch(self, batch: Sequence[_Read]) -> None:
        if not batch:
            return
        try:
            results = await self._database.read(_run_all, [read.work for read in batch])
        except Exception as error:  # noqa: BLE001 - whatever a read raises belongs to its waiter, not to this task
            await self._failed(batch, error)
        else:
            for read, result in zip(batch, results, strict=True):
                if not read.answer.done():
                    read.answer.set_result(result)

    async def _failed(self, batch: Sequence[_Read], error: Exception) -> None:
        """Find the read that failed by running each alone; when the database failed, all did."""
        if isinstance(error, StoreError) and not isinstance(error, RefusedError):
            for read in batch:
                if not read.answer.done():
                    read.answer.set_exception(StoreError(error.problem))
        elif len(batch) > 1:
            for read in batch:
                await self._serve_batch([read])
        elif not batch[0].answer.done():
            batch[0].answer.set_exception(error)


def _run_all(connection: sa.Connection, works: Sequence[Callable[[sa.Connection], object]]) -> list[object]:
    return [work(connection) for work in works]
