"""What people do to a run that they do not hold: answer, resume, cancel, close. One guarded transaction each."""

from __future__ import annotations

import sqlalchemy as sa

from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, ResumeCause, RunStatus, TerminationReason
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.rows import entry_values
from worker.adapters.sql.tables import inbox, journal, run
from worker.adapters.sql.writes import insert_audit
from worker.ports.records import AuditRow, EntryRow, InboxRow, RunRow, StoredAnswer

__all__ = ["AnswerRefusedError", "cancel_run", "close_run", "retry_blocked_run", "store_answer"]

_WAITING = tuple(status.value for status in WAITING_STATUSES)


class AnswerRefusedError(Exception):
    """An answer came to nothing. Raised so that its audit row is rolled back; `outcome` says why."""

    def __init__(self, outcome: StoredAnswer) -> None:
        super().__init__(outcome.problem)
        self.outcome = outcome


def store_answer(connection: sa.Connection, run_uid: int, row: InboxRow, audit: AuditRow, *, replace: bool) -> None:
    """Store an answer and make the run due.

    Order: audit, then the run's row (locked FOR UPDATE), then the answer. Of many deciders at once the first to get the
    lock wins; the others find his answer. Index: the primary keys.
    Errors: `AnswerRefusedError`; the caller rolls back.
    """
    now = read_now(connection)
    insert_audit(connection, [audit], now)
    _check_question(connection, run_uid, row.question, now)
    _put(connection, run_uid, row, now, replace=replace)
    connection.execute(
        sa.update(run)
        .where(run.c.uid == run_uid)
        .values(
            answered_by=row.decided_by,
            due_at=now,
            woken_at=None,
            cause=ResumeCause.ANSWER.value,
            updated_at=now,
        )
    )


def _check_question(connection: sa.Connection, run_uid: int, question: str, now: float) -> None:
    """Lock the run's row and see that it waits for an answer to this question.

    An answer that is there already counts first: the run may have gone on with it, and the decider is told whose it is.
    """
    found = connection.execute(
        sa.select(run.c.status, run.c.question, run.c.expires_at).where(run.c.uid == run_uid).with_for_update()
    ).one_or_none()
    waiting = found is not None and found.status in _WAITING
    if found is not None and waiting and found.question == question:
        if found.expires_at is not None and found.expires_at <= now:
            raise AnswerRefusedError(StoredAnswer(problem="expired"))
        return
    answered = connection.execute(
        sa.select(inbox.c.decided_by).where(inbox.c.run_uid == run_uid, inbox.c.question == question)
    ).scalar_one_or_none()
    if answered is not None:
        raise AnswerRefusedError(StoredAnswer(problem="answered", decided_by=answered))
    raise AnswerRefusedError(StoredAnswer(problem="stale" if waiting else "not_waiting"))


def _put(connection: sa.Connection, run_uid: int, row: InboxRow, now: float, *, replace: bool) -> None:
    """Insert the answer, or put it in the place of an unspent one of a blocked run. The run's row is locked."""
    here = sa.and_(inbox.c.run_uid == run_uid, inbox.c.question == row.question)
    values = {
        "kind": row.kind,
        "decided_by": row.decided_by,
        "via": row.via,
        "at": now,
        "payload": row.payload,
    }
    old = connection.execute(
        sa.select(inbox.c.decided_by, inbox.c.consumed_seq, run.c.blocked)
        .join(run, run.c.uid == inbox.c.run_uid)
        .where(here)
    ).one_or_none()
    if old is None:
        connection.execute(sa.insert(inbox).values(run_uid=run_uid, question=row.question, **values))
    elif replace and old.consumed_seq is None and old.blocked is not None:
        connection.execute(sa.update(inbox).where(here).values(**values))
    else:
        raise AnswerRefusedError(StoredAnswer(problem="answered", decided_by=old.decided_by))


def retry_blocked_run(connection: sa.Connection, run_uid: int, audit: AuditRow) -> bool:
    """Make a blocked run due with cause `resume`. Guard: blocked, held by nobody, not final, not expired."""
    now = read_now(connection)
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
    now = read_now(connection)
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
    now = read_now(connection)
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
