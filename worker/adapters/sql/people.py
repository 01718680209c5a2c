"""What people do to a run that they do not hold: resume, cancel, close. One guarded transaction each."""

from __future__ import annotations

import sqlalchemy as sa

from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, ResumeCause, RunStatus, TerminationReason
from worker.adapters.sql.clock import lock_time
from worker.adapters.sql.rows import entry_values
from worker.adapters.sql.tables import journal, run
from worker.adapters.sql.writes import insert_audit
from worker.ports.records import AuditRow, EntryRow, RunRow

__all__ = ["cancel_run", "close_run", "retry_blocked_run"]

_WAITING = tuple(status.value for status in WAITING_STATUSES)


def retry_blocked_run(connection: sa.Connection, run_uid: int, audit: AuditRow) -> bool:
    """Make a blocked run due with cause `resume`. Guard: blocked, held by nobody, not final, not expired."""
    now = lock_time(connection)
    retried = connection.execute(
        sa.update(run)
        .where(
            run.c.uid == run_uid,
            run.c.blocked.is_not(None),
            run.c.status.in_((RunStatus.QUEUED.value, *_WAITING)),
            sa.or_(run.c.expires_at.is_(None), run.c.expires_at > now),
        )
        .values(due_at=now, woken_at=None, cause=ResumeCause.RESUME.value, updated_at=now)
    )
    return _audited(connection, retried.rowcount == 1, audit, now)


def cancel_run(connection: sa.Connection, run_uid: int, audit: AuditRow) -> bool:
    """Set a running run cancelled. Its token and lease stay, for the late results and the closing entry."""
    now = lock_time(connection)
    cancelled = connection.execute(
        sa.update(run)
        .where(run.c.uid == run_uid, run.c.status == RunStatus.RUNNING.value)
        .values(
            status=RunStatus.CANCELLED.value,
            reason=TerminationReason.CANCELLED.value,
            finished_at=now,
            updated_at=now,
        )
    )
    return _audited(connection, cancelled.rowcount == 1, audit, now)


def close_run(connection: sa.Connection, seen: RunRow, entry: EntryRow, head: bytes, audit: AuditRow | None) -> bool:
    """Append the closing entry of a run that nobody drives, and end it as cancelled.

    Guard: status, seq and token are still those that were `seen`; a cancelled run's lease must have ended. Locks the
    row. Of two closers one finds it changed.
    """
    now = lock_time(connection)
    guard = [
        run.c.uid == seen.uid,
        run.c.seq == seen.seq,
        run.c.status == seen.status.value,
        run.c.token.is_not_distinct_from(seen.token),
    ]
    if seen.status is RunStatus.CANCELLED:
        guard += [run.c.token.is_not(None), run.c.due_at <= now]
    elif seen.status is RunStatus.RUNNING or seen.status in FINAL_STATUSES:
        return False
    closed = connection.execute(sa.update(run).where(*guard).values(seq=entry.seq, head=head, **_closed(now)))
    if closed.rowcount != 1:
        return False
    connection.execute(sa.insert(journal).values(**entry_values(seen.uid, seen.token or "", entry, now)))
    if audit is not None:
        insert_audit(connection, [audit], now)
    return True


def _closed(now: float) -> dict[str, object]:
    """Give the values of a row that is cancelled for good: nobody holds it, nothing is asked, nothing is due."""
    gone = (
        "token",
        "holder",
        "due_at",
        "cause",
        "question",
        "question_kind",
        "question_number",
        "expires_at",
        "blocked",
    )
    return {
        **dict.fromkeys(gone),
        "status": RunStatus.CANCELLED.value,
        "reason": TerminationReason.CANCELLED.value,
        "finished_at": sa.func.coalesce(run.c.finished_at, now),
        "updated_at": now,
    }


def _audited(connection: sa.Connection, happened: bool, audit: AuditRow, now: float) -> bool:
    if happened:
        insert_audit(connection, [audit], now)
    return happened
