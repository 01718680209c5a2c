"""The first rows of runs. Plain functions of a connection, so that they can share a caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningInsert

from codec.vocabulary import RunStatus
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.rows import RUN_COLUMNS, document_values, run_row, source_values
from worker.adapters.sql.tables import doc, run, run_source
from worker.adapters.sql.writes import insert_audit, insert_into
from worker.ports.records import NewRun, RunRow

__all__ = ["create_run", "create_runs", "create_runs_of_ours"]

_KEY_WAIT: Final = "2s"
"""How long a start of ours waits for another transaction that uses its idempotency key. Ours take milliseconds; one
that takes longer is a caller's, and stays open for as long as he likes."""


def create_run(connection: sa.Connection, new: NewRun) -> tuple[RunRow, bool]:
    """Write one run, as `create_runs` does."""
    return create_runs(connection, [new])[0]


def create_runs_of_ours(connection: sa.Connection, new: Sequence[NewRun]) -> list[tuple[RunRow, bool]]:
    """Write runs as `create_runs` does, in a transaction of ours, which others' work shares.

    Errors: `StoreError` (`busy`) when a key is in use for longer than somebody else's work may wait for it.
    """
    if connection.dialect.name == "postgresql" and any(one.idempotency is not None for one in new):
        connection.execute(sa.select(sa.func.set_config("lock_timeout", _KEY_WAIT, True)))
    return create_runs(connection, new)


def create_runs(connection: sa.Connection, new: Sequence[NewRun]) -> list[tuple[RunRow, bool]]:
    """Write runs with their documents and audit, in the order of their keys.

    Gives for each, in the order asked, its row and True, or the earlier row of the same idempotency key and False. Of
    two at once with the same key the second waits for the first one's transaction and then finds its row. Index:
    uq_run_owner_idempotency.
    """
    now = read_now(connection)
    in_order = sorted(new, key=lambda one: (one.owner, one.idempotency or ""))
    inserted = connection.execute(_insert(connection.dialect.name), [_run_values(one, now) for one in in_order])
    rows = {row.uuid: run_row(row) for row in inserted}
    written = [one for one in new if one.uuid in rows]
    documents = [document_values(rows[one.uuid].uid, document) for one in written for document in one.documents]
    if documents:
        connection.execute(sa.insert(doc), documents)
    sources = [source_values(rows[one.uuid].uid, source) for one in written for source in one.sources]
    if sources:
        connection.execute(sa.insert(run_source), sources)
    insert_audit(connection, [row for one in written for row in one.audits], now)
    return [(rows[one.uuid], True) if one.uuid in rows else (_earlier(connection, one), False) for one in new]


def _earlier(connection: sa.Connection, new: NewRun) -> RunRow:
    same = sa.and_(run.c.owner == new.owner, run.c.idempotency == new.idempotency)
    return run_row(connection.execute(sa.select(*RUN_COLUMNS).where(same)).one())


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
            "in_vain": 0,
            "due_at": now,
        }
    return {
        "status": RunStatus.RUNNING.value,
        "token": new.claim_token,
        "holder": new.claim_holder,
        "segment": 1,
        "attempts": 1,
        "in_vain": 1,
        "due_at": now + new.lease_s,
    }
