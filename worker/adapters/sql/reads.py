"""Reads of runs. None of them opens a payload; those named `…s_of` serve many askers with one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa

from codec.vocabulary import Origin, RunStatus, TerminationReason
from worker.adapters.sql.batch import Batch
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
from worker.ports.records import AuditRow, Document, EntryRow, InboxRow, RunFilter, RunRow, SourceRow, Stored

__all__ = [
    "list_audit",
    "list_runs",
    "read_answer",
    "read_document",
    "read_entries",
    "read_sources",
    "runs_of",
    "stored_of",
]

_Record = TypeVar("_Record", bound=msgspec.Struct)

# Built once: making a statement of so many columns costs more than running it.
_WANTED, _OF = sa.bindparam("wanted", type_=sa.Text), sa.bindparam("of", type_=sa.BigInteger)
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


def runs_of(connection: sa.Connection, uuids: Sequence[str]) -> list[RunRow | None]:
    """Read rows by uuid, in that order. Index: the unique uuid."""
    dialect = connection.dialect.name
    rows = connection.execute(_named_statement(dialect), _NAMED.parameters(dialect, [(uuid,) for uuid in uuids]))
    found = {row.uuid: run_row(row) for row in rows}
    return [found.get(uuid) for uuid in uuids]


_NAMED: Final = Batch(uuid=sa.Text)


@cache
def _named_statement(dialect: str) -> sa.Select[Any]:
    named = _NAMED.source(dialect)
    return sa.select(*RUN_COLUMNS).join(named, run.c.uuid == named.c.uuid)


def stored_of(connection: sa.Connection, run_uids: Sequence[int]) -> list[Stored]:
    """Read what runs stand on, in that order. Indexes: the primary keys."""
    # Each run once, however many ask for it: a join would give its rows once for each of them.
    parameters = _LISTED.parameters(connection.dialect.name, [(uid,) for uid in dict.fromkeys(run_uids)])
    statements = _stored_statements(connection.dialect.name)
    documents = _grouped(connection.execute(statements[0], parameters), Document)
    entries = _grouped(connection.execute(statements[1], parameters), EntryRow)
    answers = _grouped(connection.execute(statements[2], parameters), InboxRow)
    return [
        Stored(documents=tuple(documents[uid]), entries=tuple(entries[uid]), answer=next(iter(answers[uid]), None))
        for uid in run_uids
    ]


def _grouped(rows: Iterable[sa.Row[Any]], kind: type[_Record]) -> defaultdict[int, list[_Record]]:
    """Build records of rows that begin with their run's uid and go on with the record's fields."""
    names = kind.__struct_fields__
    found: defaultdict[int, list[_Record]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(kind(**dict(zip(names, row[1:], strict=True))))
    return found


@cache
def _stored_statements(dialect: str) -> tuple[sa.Select[Any], sa.Select[Any], sa.Select[Any]]:
    listed = _LISTED.source(dialect)
    newest = sa.select(sa.func.max(doc.c.seq)).where(doc.c.run_uid == listed.c.uid, doc.c.kind.in_(("state", "base")))
    documents = (
        sa.select(listed.c.uid, *DOC_COLUMNS)
        .join(run, run.c.uid == listed.c.uid)
        .join(doc, doc.c.run_uid == listed.c.uid)
        .where(sa.or_(doc.c.kind != "request", run.c.seq == 0))
    )
    entries = (
        sa.select(listed.c.uid, *ENTRY_COLUMNS)
        .join(journal, journal.c.run_uid == listed.c.uid)
        .where(journal.c.seq > sa.func.coalesce(newest.scalar_subquery(), 0))
        .order_by(journal.c.run_uid, journal.c.seq)
    )
    answers = (
        sa.select(listed.c.uid, *INBOX_COLUMNS)
        .join(run, run.c.uid == listed.c.uid)
        .join(inbox, sa.and_(inbox.c.run_uid == listed.c.uid, inbox.c.question == run.c.question))
        .where(inbox.c.consumed_seq.is_(None))
    )
    return documents, entries, answers


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

    Dead are failed runs that can go on: what is stored can be read and was not purged, and nobody requeued them yet
    (ix_run_lineage_run).
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
        conditions += [run.c.reason != TerminationReason.CORRUPT.value, run.c.wrapped_key.is_not(None), ~requeued]
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
