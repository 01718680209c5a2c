"""Which processes live: each beats now and then, and a beat's age by the database's clock tells who is gone."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.tables import process
from worker.adapters.sql.writes import insert_into

__all__ = ["ProcessRow", "Processes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process; `alive` = it beat within the seconds asked for. Times in seconds since the epoch."""

    id: str
    kind: str
    host: str
    pid: int
    started_at: float
    beat_at: float
    alive: bool


class Processes:
    """The table of processes. Errors: `StoreError` everywhere."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(self, id: str, *, kind: str, host: str, pid: int) -> None:
        """Say that a process lives; under the same id again it starts anew."""
        await self._database.transact(_register, id, kind, host, pid)

    async def beat(self, id: str) -> bool:
        """Say that it still lives. False when somebody removed it: it should register again."""
        return await self._database.transact(_beat, id)

    async def list(self, alive_s: float) -> list[ProcessRow]:
        """List all, the earliest first; `alive` are those that beat within `alive_s` seconds."""
        return await self._database.read(_list, alive_s)

    async def remove(self, id: str) -> None:
        """Say that a process has ended. Removing an unknown one is nothing."""
        await self._database.transact(_remove, id)

    async def remove_silent(self, silent_s: float) -> int:
        """Forget those that have not beaten for `silent_s` seconds, and give their number."""
        return await self._database.transact(_remove_silent, silent_s)


def _register(connection: sa.Connection, id: str, kind: str, host: str, pid: int) -> None:
    """Write the row over an older one of the same id. Index: the primary key, here and below."""
    now = read_now(connection)
    values = {"kind": kind, "host": host, "pid": pid, "started_at": now, "beat_at": now}
    insert = insert_into(connection.dialect.name, process).values(id=id, **values)
    connection.execute(insert.on_conflict_do_update(index_elements=[process.c.id], set_=values))


def _beat(connection: sa.Connection, id: str) -> bool:
    beaten = sa.update(process).where(process.c.id == id).values(beat_at=read_now(connection))
    return connection.execute(beaten).rowcount == 1


def _list(connection: sa.Connection, alive_s: float) -> list[ProcessRow]:
    since = read_now(connection) - alive_s
    rows = connection.execute(sa.select(process).order_by(process.c.started_at, process.c.id))
    return [ProcessRow(**row._mapping, alive=row.beat_at >= since) for row in rows]


def _remove(connection: sa.Connection, id: str) -> None:
    connection.execute(sa.delete(process).where(process.c.id == id))


def _remove_silent(connection: sa.Connection, silent_s: float) -> int:
    silent = sa.delete(process).where(process.c.beat_at < read_now(connection) - silent_s)
    return connection.execute(silent).rowcount
