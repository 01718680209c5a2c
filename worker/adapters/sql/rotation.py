"""The port `KeyKeeping`: a ring in a file and in the database, changed together.

Order of everything here: a key is in the file before the database knows it, active in the file before it is active in
the database, and known to both before a row is wrapped under it. So after a crash at any point the file has whatever
the database or a row names, and `agreed_ring` settles which key is active.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from msgspec.structs import replace

from worker.adapters.key_file import locked
from worker.adapters.sealing import LOOK_EVERY_S, KeyRing, KeyRingError
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import SUBKEY, agreed_ring, lock_ring, register_ring, registered_ring
from worker.adapters.sql.rewrap import WRAPPED, count_wrapped, find_under, rewrap_rows
from worker.adapters.sql.tables import key_ring, run
from worker.adapters.sql.writes import insert_audit
from worker.ports.keeping import KeyRow, Progress, Rotation
from worker.ports.records import AuditRow

__all__ = ["SqlKeys"]

_BATCH: Final = 500
"""Rows of one transaction: some milliseconds, since each is a run's hot row that somebody may want to write."""
_PASSES: Final = 4
"""Later passes find what others wrote meanwhile under an older key. With one that never stops there is no last pass."""
_GRACE_S: Final = 1.5 * LOOK_EVERY_S
"""Seconds until a process that shares the file wraps under the new key, and has stored what it wrapped before."""
_WAIT_S: Final = 30.0
"""Seconds for another process to change the file: what it waits for meanwhile is the database, for as long at most."""


class SqlKeys:
    """The keys of one installation. Errors: `StoreError`, `KeepingError` everywhere."""

    def __init__(self, database: Database, path: Path, grace_s: float = _GRACE_S) -> None:
        """Take the database and the ring's file, which belong together.

        Units: `grace_s`, how long others may wrap under the older key after a rotation, in seconds.
        """
        self._database = database
        self._path = path
        self._grace_s = grace_s

    async def keys(self) -> list[KeyRow]:
        """See the port."""
        return await self._database.read(_list_keys, KeyRing.load(self._path))

    async def add(self, *, force: bool, actor: str, via: str) -> str:
        """See the port."""
        async with self._alone():
            return (await self._add(force, AuditRow(decision="", actor=actor, via=via))).newest

    async def rotate(self, *, add: bool, actor: str, via: str, progress: Progress) -> Rotation:
        """See the port."""
        by = AuditRow(decision="keys_rotated", actor=actor, via=via)
        work = _Work(self._database, progress)
        ring, fresh = await self._activate(by, add=False)
        if not await work.wrap_anew(ring) and add and not fresh:
            ring, fresh = await self._activate(by, add=True)
            await work.wrap_anew(ring)
        if fresh:
            await self._await_others(work, ring)
        return await self._database.transact(_finish, ring, work, fresh, by)

    async def _await_others(self, work: _Work, ring: KeyRing) -> None:
        """Go after what processes still wrapped under the older key that had not looked at the file again."""
        for _ in range(_PASSES):
            await asyncio.sleep(self._grace_s)
            if not await work.wrap_anew(ring):
                return

    async def _activate(self, by: AuditRow, *, add: bool) -> tuple[KeyRing, bool]:
        """Make the newest key active; gives the ring, and whether another one was. `add` = add one if there is none."""
        async with self._alone():
            ring = KeyRing.load(self._path)
            if add and ring.newest == (await self._database.read(agreed_ring, ring)).active:
                ring = await self._add(False, by)
            return await self._database.transact(_activate_key, self._path, ring, by)

    async def _add(self, force: bool, by: AuditRow) -> KeyRing:
        ring = await self._database.read(agreed_ring, KeyRing.load(self._path))
        return await self._database.transact(_add_key, self._path, ring, ring.grown(), force, by)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Let nobody else change the file meanwhile."""
        with ExitStack() as held:
            try:
                await asyncio.to_thread(held.enter_context, locked(self._path, _WAIT_S))
            except TimeoutError:
                raise KeyRingError(f"{self._path} is being changed by another process; try again") from None
            except OSError as error:
                raise KeyRingError(f"{self._path} cannot be changed ({type(error).__name__})") from None
            yield


class _Work:
    """What one rotation has wrapped anew so far."""

    def __init__(self, database: Database, progress: Progress) -> None:
        self._database = database
        self._progress = progress
        self._done: Counter[sa.Table] = Counter()

    @property
    def runs(self) -> int:
        """Runs wrapped anew."""
        return self._done[run]

    @property
    def records(self) -> int:
        """Records of the catalogue wrapped anew."""
        return self._done.total() - self.runs

    async def wrap_anew(self, ring: KeyRing) -> bool:
        """Go once through everything that is under other keys of the ring.

        Gives whether anything was to be done, be it that another rotation has done it meanwhile.
        """
        others = [key_id for key_id in ring.keys if key_id != ring.active]
        before = self._done.total()
        there = await self._database.read(_count_under, others)
        for table in WRAPPED:
            after = 0
            while found := await self._database.read(find_under, table, others, after, _BATCH):
                self._done[table] += await self._database.transact(rewrap_rows, table, ring, found)
                after = found[-1]
                self._progress(self._done.total(), max(before + there, self._done.total()))
        if self._done.total() > before:
            return True
        return there > 0 and await self._database.read(_count_under, others) < there


def _count_under(connection: sa.Connection, keys: Sequence[str]) -> int:
    counts = (count_wrapped(connection, table) for table in WRAPPED)
    return sum(count.get(key_id, 0) for count in counts for key_id in keys)


def _list_keys(connection: sa.Connection, ring: KeyRing) -> list[KeyRow]:
    """Read what the database knows and count what is wrapped by each key."""
    ring = agreed_ring(connection, ring)
    known = {row.id: row.created_at for row in connection.execute(_KNOWN) if row.id != SUBKEY}
    runs, *others = (count_wrapped(connection, table) for table in WRAPPED)
    records = sum((Counter(count) for count in others), Counter[str]())
    return [
        KeyRow(
            id=key_id,
            active=key_id == ring.active,
            here=key_id in ring.keys,
            known=key_id in known,
            runs=runs.get(key_id, 0),
            records=records[key_id],
            created_at=known.get(key_id),
        )
        for key_id in dict.fromkeys([*ring.keys, *known, *sorted(runs), *sorted(records)])
    ]


_KNOWN: Final = sa.select(key_ring.c.id, key_ring.c.created_at).order_by(key_ring.c.created_at, key_ring.c.id)


def _add_key(
    connection: sa.Connection, path: Path, ring: KeyRing, grown: KeyRing, force: bool, by: AuditRow
) -> KeyRing:
    """Put a new key into the file, then into the database. Repeated, it writes the same key. Locks: `lock_ring`."""
    lock_ring(connection)
    if not force:
        _must_have_newest(connection, ring)
    grown = agreed_ring(connection, grown)
    grown.save(path)
    return register_ring(connection, grown, by)


def _activate_key(connection: sa.Connection, path: Path, ring: KeyRing, by: AuditRow) -> tuple[KeyRing, bool]:
    """Make the newest key active, in the file, then in the database; gives the ring, and whether it was not so already.

    Locks: `lock_ring`.
    """
    lock_ring(connection)
    before = agreed_ring(connection, ring)
    wanted = before.activated(before.newest)
    if wanted == ring and registered_ring(connection, ring) is not None:
        return ring, False
    _must_have_newest(connection, ring)
    wanted.save(path)
    return register_ring(connection, wanted, by), before.active != wanted.active


def _must_have_newest(connection: sa.Connection, ring: KeyRing) -> None:
    """See that no other host has added a key that this file lacks: their files would grow apart."""
    known = [row for row in connection.execute(_KNOWN) if row.id != SUBKEY]
    newest = max((row.created_at for row in known if row.id in ring.keys), default=0.0)
    ahead = [row.id for row in known if row.id not in ring.keys and row.created_at > newest]
    if ahead:
        raise KeyRingError(
            f"the database knows {ahead[-1]}, which is newer than every key of this ring; copy the newer file here, "
            "or, if there is none any more, say: regate keys add --force"
        )


def _finish(connection: sa.Connection, ring: KeyRing, work: _Work, fresh: bool, by: AuditRow) -> Rotation:
    """Count what is left, and write the row of the audit."""
    left = tuple(row for row in _list_keys(connection, ring) if row.rows and not row.active)
    counts = f"runs {work.runs}, records {work.records}, left {sum(row.rows for row in left)}"
    insert_audit(connection, [replace(by, detail=f"{ring.active}: {counts}")], read_now(connection))
    return Rotation(active=ring.active, fresh=fresh, runs=work.runs, records=work.records, left=left)
