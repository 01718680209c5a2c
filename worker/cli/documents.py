"""Documents that are made of rows: what `runs`, `events` and `audit` print, for programs and for people alike."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codec.vocabulary import FINAL_STATUSES, BlockedReason
from codec.wire import ShownBlocked
from worker.ports.records import AuditRow, RunRow
from worker.settings import Privacy

__all__ = ["audit_document", "blocked_of", "run_document", "shown_event"]

_EVENT_HEAD: Final = ("sequence", "at", "kind", "round", "segment")
_AUDIT_ORDER: Final = (
    *("at", "run", "decision", "mode", "source", "data_class", "zone", "ceiling"),
    *("provider", "configuration", "tool", "actor", "via", "detail"),
)


def run_document(row: RunRow, key_ids: frozenset[str], doc_version: int) -> dict[str, Any]:
    """Give one run of a list. Opens nothing: what can be told of a run nobody here can open is told too."""
    blocked = blocked_of(row, key_ids, doc_version)
    waiting = None
    if row.question is not None and row.status not in FINAL_STATUSES:
        waiting = {
            "kind": row.question_kind,
            "question": row.question,
            "number": row.question_number,
            "answered_by": row.answered_by,
        }
    return {
        "uuid": row.uuid,
        "status": row.status,
        "termination_reason": row.reason,
        "configuration": row.configuration,
        "origin": row.origin,
        "started_by": row.owner,
        "created_at": row.created_at,
        "rounds": row.rounds,
        "waiting": waiting,
        "blocked": blocked,
        "purged": row.purged,
    }


def blocked_of(row: RunRow, key_ids: frozenset[str], doc_version: int) -> ShownBlocked | None:
    """Give what blocks a run, as far as its row says."""
    if row.status in FINAL_STATUSES:
        return None
    if row.key_id not in key_ids:
        return ShownBlocked(reason=BlockedReason.KEY, configuration=row.configuration)
    if row.doc_version > doc_version:
        return ShownBlocked(reason=BlockedReason.VERSION, configuration=row.configuration)
    return None if row.blocked is None else msgspec.json.decode(row.blocked, type=ShownBlocked)


def shown_event(event: dict[str, Any], privacy: Privacy) -> dict[str, Any]:
    """Give an event as far as the privacy setting lets it be seen. Events hold no content at any level."""
    return {name: event[name] for name in _EVENT_HEAD} if privacy is Privacy.NONE else event


def audit_document(row: AuditRow) -> dict[str, Any]:
    """Give one row of the audit, in the order of its contract."""
    given = msgspec.structs.asdict(row)
    return {name: given[name] for name in _AUDIT_ORDER}
