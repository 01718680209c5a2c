"""Between rows of the tables and the records of the port. No statement here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa

from codec.vocabulary import Origin, QuestionKind, RunStatus, TerminationReason
from worker.adapters.sql.tables import audit, doc, inbox, journal, run, run_source
from worker.ports.records import AuditRow, Document, EntryRow, InboxRow, RunRow, SourceRow

__all__ = [
    "AUDIT_COLUMNS",
    "DOC_COLUMNS",
    "ENTRY_COLUMNS",
    "INBOX_COLUMNS",
    "RUN_COLUMNS",
    "SOURCE_COLUMNS",
    "audit_values",
    "document_values",
    "entry_values",
    "run_row",
    "source_values",
]

RUN_COLUMNS: Final = tuple(run.c[name] for name in RunRow.__struct_fields__)
AUDIT_COLUMNS: Final = tuple(audit.c[name] for name in AuditRow.__struct_fields__)
DOC_COLUMNS: Final = tuple(doc.c[name] for name in Document.__struct_fields__)
INBOX_COLUMNS: Final = tuple(inbox.c[name] for name in InboxRow.__struct_fields__)
ENTRY_COLUMNS: Final = tuple(
    journal.c.policy_version.label("policy") if name == "policy" else journal.c[name]
    for name in EntryRow.__struct_fields__
)
SOURCE_COLUMNS: Final = tuple(
    run_source.c.source_uid.label("uid") if name == "uid" else run_source.c[name]
    for name in SourceRow.__struct_fields__
)


def run_row(row: sa.Row[Any]) -> RunRow:
    """Read `RUN_COLUMNS`. A purged run's `wrapped_key` is empty."""
    values = dict(row._mapping)
    kind, reason = values["question_kind"], values["reason"]
    values["status"] = RunStatus(values["status"])
    values["origin"] = Origin(values["origin"])
    values["question_kind"] = None if kind is None else QuestionKind(kind)
    values["reason"] = None if reason is None else TerminationReason(reason)
    values["wrapped_key"] = values["wrapped_key"] or b""
    return RunRow(**values)


def entry_values(run_uid: int, token: str, entry: EntryRow, now: float) -> dict[str, Any]:
    """Give a journal row, written at `now` under `token`."""
    return {
        "run_uid": run_uid,
        "seq": entry.seq,
        "kind": entry.kind,
        "at": now,
        "segment": entry.segment,
        "token": token,
        "policy_version": entry.policy,
        "prev": entry.prev,
        "meta": entry.meta,
        "payload": entry.payload,
    }


def document_values(run_uid: int, document: Document) -> dict[str, Any]:
    """Give a row of `doc`."""
    return {
        "run_uid": run_uid,
        "kind": document.kind,
        "version": document.version,
        "seq": document.seq,
        "payload": document.payload,
    }


def source_values(run_uid: int, source: SourceRow) -> dict[str, Any]:
    """Give a row of `run_source`."""
    return {
        "run_uid": run_uid,
        "kind": source.kind,
        "source_uid": source.uid,
        "name": source.name,
        "origin": source.origin,
        "seen": source.seen,
        "text_hash": source.text_hash,
    }


def audit_values(rows: Iterable[AuditRow], now: float) -> list[dict[str, Any]]:
    """Give rows of `audit`, all of this moment."""
    return [{name: getattr(row, name) for name in _AUDIT_NAMES} | {"at": now} for row in rows]


_AUDIT_NAMES: Final = tuple(name for name in AuditRow.__struct_fields__ if name != "at")
