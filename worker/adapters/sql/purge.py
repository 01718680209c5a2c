"""The port `Purging` on SQL: a purged run is one whose wrapped key is gone; nothing sealed of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from msgspec.structs import replace

from codec.vocabulary import FINAL_STATUSES, RunStatus
from worker.adapters.sql.batch import Batch
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.remains import SqliteFile
from worker.adapters.sql.tables import doc, inbox, journal, run
from worker.adapters.sql.writes import insert_audit
from worker.ports.keeping import Progress, Wanted
from worker.ports.records import AuditRow

__all__ = ["SqlPurging", "count_purgeable", "find_purgeable", "purge_runs"]

_BATCH: Final = 200
_MOST_ENTRIES: Final = 5_000
"""Bounds of a transaction: runs, and the entries of their journals. 0.3 s on SQLite with entries of 1.5 KB (measured),
in which nobody else writes; ten times as many would cost leases of a second or two."""
_CHOSEN: Final = Batch(uid=sa.BigInteger)


class SqlPurging:
    """Purging in one database. Errors: `StoreError`; `KeepingError` of `wipe`."""

    def __init__(self, database: Database, url: str) -> None:
        """Take the database, and its URL for the file that it is."""
        self._database = database
        self._file = SqliteFile.of(url)

    async def count(self, wanted: Wanted) -> int:
        """See the port."""
        found = await self._database.read(count_purgeable, wanted)
        return found if wanted.limit is None else min(found, wanted.limit)

    async def purge(self, wanted: Wanted, *, actor: str, via: str, progress: Progress) -> int:
        """See the port."""
        audit = AuditRow(decision="run_purged", actor=actor, via=via)
        expected, done, after = await self.count(wanted), 0, 0
        while wanted.limit is None or done < wanted.limit:
            most = _BATCH if wanted.limit is None else min(_BATCH, wanted.limit - done)
            found = await self._database.read(find_purgeable, wanted, after, most)
            if not found:
                break
            done += await self._database.transact(purge_runs, found, audit)
            after = found[-1]
            progress(done, max(expected, done))
        return done

    async def wipe(self, *, compact: bool) -> None:
        """See the port."""
        if self._file is not None:
            await asyncio.to_thread(self._file.wipe, compact=compact)

    async def size(self) -> int | None:
        """See the port."""
        return None if self._file is None else await asyncio.to_thread(self._file.size)


def count_purgeable(connection: sa.Connection, wanted: Wanted) -> int:
    """Count the runs that may be purged. Reads all runs of these statuses, for somebody who asks."""
    counts = (sa.select(sa.func.count()).where(*_purgeable(status), _ended()) for status in wanted.statuses)
    return sum(connection.execute(count, {"before": wanted.before}).scalar_one() for count in counts)


def find_purgeable(connection: sa.Connection, wanted: Wanted, after: int, most: int) -> list[int]:
    """Find the next runs that may be purged, in the order of their uids: as many as one transaction may hold.

    Locks nothing. Index: ix_run_status_uid in its order, for each status.
    """
    found: list[sa.Row[Any]] = []
    for status in wanted.statuses:
        found += connection.execute(_next(status), {"before": wanted.before, "after": after, "most": most})
    uids: list[int] = []
    entries = 0
    for row in sorted(found, key=lambda row: row.uid)[:most]:
        entries += row.seq
        if uids and entries > _MOST_ENTRIES:
            break
        uids.append(row.uid)
    return uids


@cache
def _next(status: RunStatus) -> sa.Select[Any]:
    return (
        sa.select(run.c.uid, run.c.seq)
        .where(*_purgeable(status), _ended(), run.c.uid > sa.bindparam("after", type_=sa.BigInteger))
        .order_by(run.c.status, run.c.uid)
        .limit(sa.bindparam("most", type_=sa.Integer))
    )


def _purgeable(status: RunStatus) -> tuple[sa.ColumnElement[bool], ...]:
    # As a range, so that a planner takes the index that the order belongs to. A cancelled run that still has a token
    # has a segment that may still append; its closing entry takes the token away.
    return run.c.status.between(status.value, status.value), run.c.token.is_(None), run.c.wrapped_key.is_not(None)


def _ended() -> sa.ColumnElement[bool]:
    return run.c.finished_at < sa.bindparam("before", type_=sa.Double)


def purge_runs(connection: sa.Connection, uids: Sequence[int], audit: AuditRow) -> int:
    """Destroy the keys of runs and what is sealed under them, each with its row of the audit; gives how many it were.

    Locks the runs by uid, then what hangs on them. Guard: final, held by nobody, and the key is still there; a final
    run stays one, so nobody but another purge can come in between. Indexes: the primary keys.
    """
    dialect = connection.dialect.name
    rows = connection.execute(_locked(dialect), _CHOSEN.parameters(dialect, [(uid,) for uid in uids])).all()
    if not rows:
        return 0
    chosen = _CHOSEN.parameters(dialect, [(row.uid,) for row in rows])
    for statement in _destroying(dialect):
        connection.execute(statement, chosen)
    audits = (replace(audit, run=row.uuid, configuration=row.configuration) for row in rows)
    insert_audit(connection, audits, read_now(connection))
    return len(rows)


@cache
def _locked(dialect: str) -> sa.Select[Any]:
    chosen = _CHOSEN.source(dialect)
    final = run.c.status.concat("").in_([status.value for status in sorted(FINAL_STATUSES)])
    return (
        sa.select(run.c.uid, run.c.uuid, run.c.configuration)
        .join(chosen, run.c.uid == chosen.c.uid)
        .where(final, run.c.token.is_(None), run.c.wrapped_key.is_not(None))
        .order_by(run.c.uid)
        .with_for_update(of=run)
    )


@cache
def _destroying(dialect: str) -> tuple[sa.Executable, ...]:
    chosen = _CHOSEN.source(dialect)
    return (
        sa.update(run).values(wrapped_key=None).where(run.c.uid == chosen.c.uid),
        sa.delete(doc).where(doc.c.run_uid.in_(sa.select(chosen.c.uid))),
        *(sa.update(table).values(payload=b"").where(table.c.run_uid == chosen.c.uid) for table in (journal, inbox)),
    )
