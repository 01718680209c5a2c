"""Who drives a run: claims, heartbeats, wake-ups and giving up a claim.

A claim's token is the guard of every later write; nobody extends or gives up what he does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from codec.vocabulary import FINAL_STATUSES, QuestionKind, ResumeCause, RunStatus
from worker.adapters.sql.batch import Batch
from worker.adapters.sql.clock import lock_time, read_now
from worker.adapters.sql.keys import LACKS_ACTIVE, is_behind
from worker.adapters.sql.rows import RUN_COLUMNS, run_row
from worker.adapters.sql.tables import run
from worker.ports.records import Claimed, Renewal, RunRow
from worker.ports.runs import StoreError

__all__ = [
    "ClaimTerms",
    "block_run",
    "claim_due",
    "give_back_run",
    "list_dead_cancelled",
    "renew_leases",
    "spare_run",
    "take_wakeable",
]

_CLAIMABLE: Final = run.c.status.concat("").not_in([status.value for status in sorted(FINAL_STATUSES)])
"""A running one is due when its lease ended; a waiting one only because somebody or its expiry made it due.

An expression, so that a planner neither starts from the index of statuses nor takes it for rare: what is due is few,
and wanted in its order.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTerms:
    """Who claims how many of which runs; the fields are the port's arguments."""

    limit: int
    token: str
    holder: str
    lease_s: float
    key_ids: frozenset[str]
    doc_version: int
    uuids: Sequence[str] | None


_CHOSEN: Final = Batch(uid=sa.BigInteger)


def claim_due(connection: sa.Connection, terms: ClaimTerms) -> list[Claimed]:
    """Claim the oldest due runs: lock them, then write token and lease.

    Locks the chosen rows; on PostgreSQL whoever comes second skips them, on SQLite the transaction is immediate.
    Index: ix_run_due_at, in its order (named ones: the unique uuid), then the primary key. Nothing that another process
    can do shows a run to two claimers. Whoever lacks the active key claims nothing: sooner or later every text of the
    catalogue is under it, and a run that is resumed or composed there would be judged as if its texts were spoilt.
    Errors: `StoreError` (`key_behind`) for such a claimer.
    """
    if terms.limit <= 0:
        return []
    now = lock_time(connection)
    wanted = {
        "now": now,
        "keys": sorted(terms.key_ids),
        "ring": sorted(terms.key_ids),
        "newest": terms.doc_version,
        "most": terms.limit,
        **({} if terms.uuids is None else {"uuids": list(terms.uuids)}),
    }
    chosen = connection.execute(_due_statement(terms.uuids is not None), wanted)
    rows = [run_row(row) for row in chosen]
    if not rows and is_behind(connection, terms.key_ids):
        raise StoreError("key_behind")
    held = {"token": terms.token, "holder": terms.holder, "lease_end": now + terms.lease_s, "now": now}
    _change_chosen(connection, _claim_statement(connection.dialect.name), [row.uid for row in rows], held)
    return [_claimed(row, terms, now) for row in rows]


@cache
def _due_statement(named: bool) -> sa.Select[Any]:
    """Build what is claimed. Once: making a statement of so many columns costs as much as running it."""
    due = (
        sa.select(*RUN_COLUMNS)
        .where(
            run.c.due_at <= sa.bindparam("now", type_=sa.Double),
            _CLAIMABLE,
            run.c.key_id.in_(sa.bindparam("keys", expanding=True, type_=sa.Text)),
            run.c.doc_version <= sa.bindparam("newest", type_=sa.Integer),
            ~LACKS_ACTIVE.exists(),
        )
        .order_by(run.c.due_at)
        .limit(sa.bindparam("most", type_=sa.Integer))
        .with_for_update(skip_locked=True)
    )
    return due.where(run.c.uuid.in_(sa.bindparam("uuids", expanding=True, type_=sa.Text))) if named else due


@cache
def _claim_statement(dialect: str) -> sa.Update:
    chosen = _CHOSEN.source(dialect)
    return (
        sa.update(run)
        .values(
            status=RunStatus.RUNNING.value,
            token=sa.bindparam("token", type_=sa.Text),
            holder=sa.bindparam("holder", type_=sa.Text),
            segment=run.c.segment + 1,
            attempts=run.c.attempts + 1,
            in_vain=run.c.in_vain + 1,
            due_at=sa.bindparam("lease_end", type_=sa.Double),
            woken_at=None,  # when it is due again, that is news
            updated_at=sa.bindparam("now", type_=sa.Double),
        )
        .where(run.c.uid == chosen.c.uid)
    )


def _change_chosen(
    connection: sa.Connection, statement: sa.Update, uids: Sequence[int], values: dict[str, Any]
) -> None:
    """Change rows that this transaction has locked, by their primary keys."""
    if uids:
        rows = [(uid,) for uid in sorted(uids)]
        connection.execute(statement, _CHOSEN.parameters(connection.dialect.name, rows) | values)


def _claimed(row: RunRow, terms: ClaimTerms, now: float) -> Claimed:
    held = msgspec.structs.replace(
        row,
        status=RunStatus.RUNNING,
        token=terms.token,
        holder=terms.holder,
        segment=row.segment + 1,
        attempts=row.attempts + 1,
        in_vain=row.in_vain + 1,
        due_at=now + terms.lease_s,
        updated_at=now,
    )
    return Claimed(row=held, token=terms.token, was=row.status, expired=_expired(row, now))


def _expired(row: RunRow, now: float) -> bool:
    """Tell whether the open question ran out unanswered.

    An answer or a person's resume came in time by its own guard, however late its claim. A blocked run that was made
    due by nothing but its expiry has an answer that could not be spent: its question ran out as well.
    """
    if row.question is None or row.expires_at is None or row.expires_at > now or row.cause == ResumeCause.ANSWER:
        return False
    return row.answered_by is None or (row.blocked is not None and row.cause != ResumeCause.RESUME)


_HOLD: Final = Batch(uid=sa.BigInteger, token=sa.Text)


@cache
def _renew_statement(dialect: str) -> ReturningUpdate[int, str]:
    hold = _HOLD.source(dialect)
    return (
        sa.update(run)
        .values(due_at=sa.bindparam("lease_end", type_=sa.Double))
        # Whoever has a token runs, or was cancelled and still finishes what is open: nobody may close that meanwhile.
        .where(run.c.uid == hold.c.uid, run.c.token == hold.c.token)
        .returning(run.c.uid, run.c.status)
    )


def renew_leases(connection: sa.Connection, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
    """Extend the leases that still hold, in one statement, and tell which runs were cancelled.

    Locks their rows, by uid, after those of the steps in the same transaction: another process can hold one of them
    only for a moment, and on PostgreSQL a circle of two is broken and repeated. Index: the primary key. A lease that
    ended holds as long as nobody else claimed the run.
    """
    if not holds:
        return []
    dialect = connection.dialect.name
    parameters = _HOLD.parameters(dialect, sorted(set(holds))) | {"lease_end": lock_time(connection) + lease_s}
    statuses = {row.uid: row.status for row in connection.execute(_renew_statement(dialect), parameters)}
    return [
        Renewal(run_uid=uid, held=uid in statuses, cancelled=statuses.get(uid) == RunStatus.CANCELLED.value)
        for uid, _ in holds
    ]


def take_wakeable(connection: sa.Connection, limit: int, interval_s: float) -> list[str]:
    """Mark due runs as woken and give their uuids, oldest due first; each once per interval for the whole fleet.

    Locks the chosen rows and skips those that are locked, so two sweepers share what is due; on SQLite the second finds
    it marked. Index: ix_run_due_at in its order, then the primary key.
    """
    now = lock_time(connection)
    wanted = {"now": now, "before": now - interval_s, "most": limit}
    due = connection.execute(_wakeable_statement(), wanted).all()
    _change_chosen(connection, _wake_statement(connection.dialect.name), [row.uid for row in due], {"now": now})
    return [row.uuid for row in due]


@cache
def _wakeable_statement() -> sa.Select[int, str]:
    return (
        sa.select(run.c.uid, run.c.uuid)
        .where(
            run.c.due_at <= sa.bindparam("now", type_=sa.Double),
            _CLAIMABLE,
            sa.or_(run.c.woken_at.is_(None), run.c.woken_at <= sa.bindparam("before", type_=sa.Double)),
        )
        .order_by(run.c.due_at)
        .limit(sa.bindparam("most", type_=sa.Integer))
        .with_for_update(skip_locked=True)
    )


@cache
def _wake_statement(dialect: str) -> sa.Update:
    chosen = _CHOSEN.source(dialect)
    return sa.update(run).values(woken_at=sa.bindparam("now", type_=sa.Double)).where(run.c.uid == chosen.c.uid)


def list_dead_cancelled(connection: sa.Connection, limit: int) -> list[RunRow]:
    """Read cancelled runs whose token outlived its lease, oldest first. Index: ix_run_cancelled. Locks nothing."""
    dead = connection.execute(_dead_statement(), {"now": read_now(connection), "most": limit})
    return [run_row(row) for row in dead]


@cache
def _dead_statement() -> sa.Select[Any]:
    return (
        sa.select(*RUN_COLUMNS)
        .where(
            run.c.due_at <= sa.bindparam("now", type_=sa.Double),
            run.c.status == sa.literal(RunStatus.CANCELLED.value, literal_execute=True),  # as the index says it
            run.c.token.is_not(None),
        )
        .order_by(run.c.due_at)
        .limit(sa.bindparam("most", type_=sa.Integer))
    )


def block_run(connection: sa.Connection, run_uid: int, token: str, blocked: str) -> bool:
    """Put a claimed run aside until a person resumes it or its question expires. False when the claim is lost.

    Locks the row, here and below. Index: the primary key.
    """
    now = lock_time(connection)
    held = sa.and_(run.c.uid == run_uid, run.c.token == token)
    return _release(connection, held, blocked=blocked, cause=None, in_vain=0, due_at=run.c.expires_at, updated_at=now)


def give_back_run(connection: sa.Connection, row: RunRow, token: str, after_s: float) -> bool:
    """Make a claimed run due again in so many seconds, as if it had not been claimed.

    False when the claim is lost, or when something was stored of it, be it by a commit whose answer was lost.
    """
    now = lock_time(connection)
    counts = {name: sa.case((run.c[name] > 0, run.c[name] - 1), else_=0) for name in ("attempts", "in_vain")}
    held = sa.and_(run.c.uid == row.uid, run.c.token == token, run.c.seq == row.seq)
    return _release(connection, held, cause=row.cause, due_at=now + after_s, updated_at=now, **counts)


def spare_run(connection: sa.Connection, run_uid: int, token: str) -> None:
    """Take back what a claim counted as in vain. Locks the row. Index: the primary key."""
    lock_time(connection)
    connection.execute(
        sa.update(run)
        .where(run.c.uid == run_uid, run.c.token == token, run.c.in_vain > 0)
        .values(in_vain=run.c.in_vain - 1)
    )


def _release(connection: sa.Connection, held: sa.ColumnElement[bool], **values: Any) -> bool:
    """Give up a claim: the status is again what the row's question says. Guard: as given, and running."""
    kind = run.c.question_kind
    status = sa.case(
        (kind == QuestionKind.INPUT.value, RunStatus.WAITING_FOR_INPUT.value),
        (kind.is_not(None), RunStatus.WAITING_FOR_APPROVAL.value),
        else_=RunStatus.QUEUED.value,
    )
    released = connection.execute(
        sa.update(run)
        .where(held, run.c.status == RunStatus.RUNNING.value)
        .values(status=status, token=None, holder=None, **values)
    )
    return released.rowcount == 1
