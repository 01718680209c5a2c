"""A run's first row. A plain function of a connection, so that it can share a caller's transaction."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningInsert

from codec.vocabulary import RunStatus
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.rows import RUN_COLUMNS, document_values, run_row, source_values
from worker.adapters.sql.tables import doc, run, run_source
from worker.adapters.sql.writes import insert_into
from worker.ports.records import NewRun, RunRow

__all__ = ["create_run"]


def create_run(connection: sa.Connection, new: NewRun) -> tuple[RunRow, bool]:
    """Write a run with its documents; gives its row and True, or the earlier row of the same idempotency key and False.

    Of two at once with the same key the second waits for the first one's transaction and then finds its row. Index:
    uq_run_owner_idempotency.
    """
    now = read_now(connection)
    inserted = connection.execute(_insert(connection.dialect.name), _run_values(new, now)).one_or_none()
    if inserted is None:
        same = sa.and_(run.c.owner == new.owner, run.c.idempotency == new.idempotency)
        return run_row(connection.execute(sa.select(*RUN_COLUMNS).where(same)).one()), False
    row = run_row(inserted)
    if new.documents:
        connection.execute(sa.insert(doc), [document_values(row.uid, document) for document in new.documents])
    if new.sources:
        connection.execute(sa.insert(run_source), [source_values(row.uid, source) for source in new.sources])
    return row, True


@cache
def _insert(dialect: str) -> ReturningInsert[Any]:
    return (
        insert_into(dialect, run)
        .on_conflict_do_nothing(index_elements=[run.c.owner, run.c.idempotency])
        .returning(*RUN_COLUMNS)
    )


def _run_values(new: NewRun, now: float) -> dict[str, Any]:
    names = (
        "uuid",
        "owner",
        "configuration_uid",
        "configuration",
        "wrapped_key",
        "key_id",
        "doc_version",
        "cause",
        "head",
        "idempotency",
        "body",
        "lineage_run",
        "lineage_at",
    )
    return {name: getattr(new, name) for name in names} | {
        "origin": new.origin.value,
        "created_at": now,
        "updated_at": now,
        **_hold_values(new, now),
    }


def _hold_values(new: NewRun, now: float) -> dict[str, Any]:
    if new.claim_token is None:
        return {
            "status": RunStatus.QUEUED.value,
            "token": None,
            "holder": None,
            "segment": 0,
            "attempts": 0,
            "due_at": now,
        }
    return {
        "status": RunStatus.RUNNING.value,
        "token": new.claim_token,
        "holder": new.claim_holder,
        "segment": 1,
        "attempts": 1,
        "due_at": now + new.lease_s,
    }
