"""Inserts that several units of work share. Each writes rows of runs that its transaction holds already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from codec.vocabulary import ExposureState
from worker.adapters.sql.rows import audit_values
from worker.adapters.sql.tables import audit, doc, exposure, run_source
from worker.ports.records import AuditRow

__all__ = ["insert_audit", "insert_into", "upsert_documents", "upsert_exposures", "upsert_sources"]

_Rows = Sequence[dict[str, Any]]


def insert_into(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Build an INSERT that can say ON CONFLICT in a dialect."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def insert_audit(connection: sa.Connection, rows: Iterable[AuditRow], now: float) -> None:
    """Write rows of the audit; nobody ever changes or removes one."""
    values = audit_values(rows, now)
    if values:
        connection.execute(sa.insert(audit), values)


def upsert_documents(connection: sa.Connection, rows: _Rows) -> None:
    """Write documents over those of the same run and kind. Index: the primary key."""
    if rows:
        connection.execute(_replacing(connection.dialect.name, doc, ("version", "seq", "payload")), rows)


def upsert_sources(connection: sa.Connection, rows: _Rows) -> None:
    """Write carried sources over the same ones; none is ever taken off a run. Index: the primary key."""
    if rows:
        connection.execute(
            _replacing(connection.dialect.name, run_source, ("name", "origin", "seen", "text_hash")), rows
        )


def upsert_exposures(connection: sa.Connection, rows: _Rows) -> None:
    """Add sends and failures to exposure rows, and move their states. Index: the primary key.

    Law: once answered is answered; failed when every send failed; else possible: one is on its way, or was lost.
    """
    if rows:
        connection.execute(_exposing(connection.dialect.name), rows)


# Built once: making a statement costs more than running it.


@cache
def _replacing(dialect: str, table: sa.Table, columns: tuple[str, ...]) -> sa.Insert:
    insert = insert_into(dialect, table)
    values = {name: insert.excluded[name] for name in columns}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)


@cache
def _exposing(dialect: str) -> sa.Insert:
    insert = insert_into(dialect, exposure)
    sends = exposure.c.sends + insert.excluded.sends
    failures = exposure.c.failures + insert.excluded.failures
    answered = ExposureState.ANSWERED.value
    state = sa.case(
        (sa.or_(exposure.c.state == answered, insert.excluded.state == answered), answered),
        (failures >= sends, ExposureState.FAILED.value),
        else_=ExposureState.POSSIBLE.value,
    )
    latest = {name: insert.excluded[name] for name in ("last_at", "mode", "identifier", "provider")}
    return insert.on_conflict_do_update(
        index_elements=list(exposure.primary_key),
        set_={"state": state, "sends": sends, "failures": failures, **latest},
    )
