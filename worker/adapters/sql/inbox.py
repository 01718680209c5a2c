"""The inbox: answers of people, many in one transaction. Each is stored under its own guard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from codec.vocabulary import WAITING_STATUSES, ResumeCause
from worker.adapters.sql.batch import Batch
from worker.adapters.sql.clock import lock_time
from worker.adapters.sql.tables import inbox, run
from worker.adapters.sql.writes import insert_audit
from worker.ports.records import AuditRow, InboxRow, StoredAnswer

__all__ = ["Given", "store_answers"]

_WAITING: Final = tuple(status.value for status in WAITING_STATUSES)
_ASKED: Final = Batch(uid=sa.BigInteger)
_PLACES: Final = Batch(uid=sa.BigInteger, question=sa.Text)


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that somebody gives. `replace` = it may take the place of an unspent one of a blocked run."""

    run_uid: int
    row: InboxRow
    audit: AuditRow
    replace: bool


def store_answers(connection: sa.Connection, given: Sequence[Given]) -> list[StoredAnswer]:
    """Store answers and make their runs due; gives what became of each, in the same order.

    Locks the runs' rows by uid, so that of many deciders at once the first to get the lock wins and the others find his
    answer; within a batch it is the first one of it. Only who wins is audited. Indexes: the primary keys.
    """
    now = lock_time(connection)
    runs = _locked_runs(connection, sorted({g.run_uid for g in given}))
    there = _answers_at(connection, sorted({(g.run_uid, g.row.question) for g in given}))
    outcomes: list[StoredAnswer] = []
    new: list[Given] = []
    replacing: list[Given] = []
    for one in given:
        place = (one.run_uid, one.row.question)
        old = there.get(place)
        outcome = _judged(runs.get(one.run_uid), one, old, now)
        outcomes.append(outcome)
        if outcome.problem is None:
            (new if old is None else replacing).append(one)
            there[place] = _Old(one.row.decided_by, fresh=True)
    accepted = [*new, *replacing]
    insert_audit(connection, [one.audit for one in accepted], now)
    _execute(connection, sa.insert(inbox), [_inserted(one, now) for one in new])
    _execute(connection, _REPLACE, [_replaced(one, now) for one in replacing])
    _execute(connection, _DUE, [{"of": one.run_uid, "by": one.row.decided_by, "at": now} for one in accepted])
    return outcomes


@dataclass(frozen=True, slots=True)
class _Old:
    """An answer that is there already. `fresh` = it cannot be replaced: spent, or given this very moment."""

    decided_by: str
    fresh: bool


@cache
def _run_statement(dialect: str) -> sa.Select[Any]:
    asked = _ASKED.source(dialect)
    columns = (run.c.uid, run.c.status, run.c.question, run.c.expires_at, run.c.blocked)
    return sa.select(*columns).join(asked, run.c.uid == asked.c.uid).order_by(run.c.uid).with_for_update(of=run)


def _locked_runs(connection: sa.Connection, uids: Sequence[int]) -> dict[int, sa.Row[Any]]:
    dialect = connection.dialect.name
    rows = connection.execute(_run_statement(dialect), _ASKED.parameters(dialect, [(uid,) for uid in uids]))
    return {row.uid: row for row in rows}


@cache
def _answers_statement(dialect: str) -> sa.Select[Any]:
    place = _PLACES.source(dialect)
    return sa.select(inbox.c.run_uid, inbox.c.question, inbox.c.decided_by, inbox.c.consumed_seq).join(
        place, sa.and_(inbox.c.run_uid == place.c.uid, inbox.c.question == place.c.question)
    )


def _answers_at(connection: sa.Connection, places: Sequence[tuple[int, str]]) -> dict[tuple[int, str], _Old]:
    dialect = connection.dialect.name
    rows = connection.execute(_answers_statement(dialect), _PLACES.parameters(dialect, places))
    return {(row.run_uid, row.question): _Old(row.decided_by, row.consumed_seq is not None) for row in rows}


def _judged(found: sa.Row[Any] | None, one: Given, old: _Old | None, now: float) -> StoredAnswer:
    """Say whether an answer may be stored.

    One that is there already counts first: the run may have gone on with it, and the decider is told whose it is.
    """
    waiting = found is not None and found.status in _WAITING
    answered = None if old is None else StoredAnswer(problem="answered", decided_by=old.decided_by)
    if found is None or not waiting or found.question != one.row.question:
        return answered or StoredAnswer(problem="stale" if waiting else "not_waiting")
    if found.expires_at is not None and found.expires_at <= now:
        return StoredAnswer(problem="expired")
    replaceable = old is not None and one.replace and not old.fresh and found.blocked is not None
    return StoredAnswer() if answered is None or replaceable else answered


def _inserted(one: Given, now: float) -> dict[str, Any]:
    return {
        "run_uid": one.run_uid,
        "question": one.row.question,
        "kind": one.row.kind,
        "decided_by": one.row.decided_by,
        "via": one.row.via,
        "at": now,
        "payload": one.row.payload,
    }


_REPLACE: Final = (
    sa.update(inbox)
    .where(inbox.c.run_uid == sa.bindparam("of"), inbox.c.question == sa.bindparam("asked"))
    .values(
        {
            name: sa.bindparam(f"new_{name}", type_=inbox.c[name].type)
            for name in ("kind", "decided_by", "via", "at", "payload")
        }
    )
)


def _replaced(one: Given, now: float) -> dict[str, Any]:
    values = _inserted(one, now)
    place = {"of": values.pop("run_uid"), "asked": values.pop("question")}
    return {**place, **{f"new_{name}": value for name, value in values.items()}}


_DUE: Final = (
    sa.update(run)
    .where(run.c.uid == sa.bindparam("of"))
    .values(
        answered_by=sa.bindparam("by", type_=sa.Text),
        due_at=sa.bindparam("at", type_=sa.Double),
        updated_at=sa.bindparam("at", type_=sa.Double),
        woken_at=None,
        cause=ResumeCause.ANSWER.value,
    )
)


def _execute(connection: sa.Connection, statement: sa.Executable, rows: Iterable[dict[str, Any]]) -> None:
    found = list(rows)
    if found:
        connection.execute(statement, found)
