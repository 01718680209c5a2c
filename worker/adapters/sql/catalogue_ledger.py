"""The frame of every catalogue write: one writer at a time, an audit row for each change, the version last.

Laws: a write that changes nothing leaves audit and version as they are; any other raises the version by exactly one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from worker.adapters.sql import catalogue_tables
from worker.adapters.sql.catalogue_read import read_version
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.locks import CATALOGUE_KEY, POLICY_KEY, lock_alone
from worker.adapters.sql.writes import insert_audit
from worker.ports.catalogue import Written
from worker.ports.records import AuditRow
from worker.ports.runs import StoreError

__all__ = ["Ledger", "Verb"]


class Verb(StrEnum):
    """What became of a record."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class Ledger:
    """Collects what one transaction changes and closes it. Make it before anything is read, close it last."""

    def __init__(self, conn: sa.Connection, *, decision: str, actor: str, via: str) -> None:
        """Wait for other writers, so that what is read from now on stays true until the commit.

        Locks: on PostgreSQL an advisory lock till the end of the transaction, taken before all others and by nobody
        but catalogue writers, so it delays no run; on SQLite the transaction is the only writer already.
        """
        self._conn = conn
        self._frame = AuditRow(decision=decision, actor=actor, via=via)
        self._names: dict[Verb, list[str]] = {verb: [] for verb in Verb}
        self._details: list[str] = []
        if conn.dialect.name == "postgresql":
            lock_alone(conn, CATALOGUE_KEY)

    def note(self, verb: Verb, name: str, fields: Iterable[str] = ()) -> None:
        """Remember a change: the record's name and the names of the fields, never a value."""
        self._names[verb].append(name)
        listed = ", ".join(fields)
        self._details.append(f"{verb} {name}: {listed}" if listed else f"{verb} {name}")

    def close(self) -> Written:
        """Write the audit rows, then the version. The caller's transaction commits next.

        Locks: the version's row exclusively, as the last thing: steps of runs that read it under a share lock commit
        before, or see the new one. So once this write has returned, no step computed under older policy commits. On
        PostgreSQL the lock of policy first, alone: commits that come later queue up behind it, or there would always
        be one inside.
        """
        if not self._details:
            return Written(version=read_version(self._conn))
        rows = [msgspec.structs.replace(self._frame, detail=detail) for detail in self._details]
        insert_audit(self._conn, rows, read_now(self._conn))
        return Written(
            version=self._bump(),
            created=tuple(self._names[Verb.CREATED]),
            changed=tuple(self._names[Verb.CHANGED]),
            deleted=tuple(self._names[Verb.DELETED]),
        )

    def _bump(self) -> int:
        table = catalogue_tables.catalogue_version
        if self._conn.dialect.name == "postgresql":
            lock_alone(self._conn, POLICY_KEY)
        bump = sa.update(table).where(table.c.id == 1).values(version=table.c.version + 1)
        found = self._conn.execute(bump.returning(table.c.version)).scalar_one_or_none()
        if found is None:
            raise StoreError("the catalogue has no version")
        return int(found)
