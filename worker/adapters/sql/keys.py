"""The database's memory of the key ring: ids and check values, so that a lost or foreign ring is noticed at start-up.

A ring is made only while the database holds nothing sealed. Otherwise a lost file would be replaced in silence, and
everything that the old one sealed would be lost with a working system on top.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from msgspec.structs import replace

from worker.adapters.sealing import KeyRing, KeyRingError, check_value
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.locks import KEYS_KEY, lock_alone
from worker.adapters.sql.sealed import SEALED
from worker.adapters.sql.tables import key_ring
from worker.adapters.sql.writes import insert_audit, insert_into
from worker.ports.records import AuditRow

__all__ = [
    "LACKS_ACTIVE",
    "SUBKEY",
    "agreed_ring",
    "ensure_ring",
    "holds_sealed",
    "is_behind",
    "lock_ring",
    "register_ring",
    "registered_ring",
    "verify_ring",
]

SUBKEY: Final = "subkey"
"""Id under which the subkey's check value is kept; keys of a ring are named `k-…`."""
_FOUND: Final = AuditRow(decision="", actor="regate", via="start")
"""Who changed what start-up finds in the file: somebody put it there, or was killed between the file and us."""
LACKS_ACTIVE: Final = sa.select(key_ring.c.id).where(
    key_ring.c.active, key_ring.c.id.not_in(sa.bindparam("ring", expanding=True, type_=sa.Text))
)
"""Finds the active key when it is not among `ring`.

That parameter is shared with no other list: an empty one is written otherwise for NOT IN than for IN.
"""


async def ensure_ring(database: Database, path: Path) -> KeyRing:
    """Give the ring in `path`, made now if database and file are both new; afterwards the database knows it.

    Its active key is the newer one of the file's and the database's: a rotation is never taken back by a host that has
    an older file, or by a crash between the two writes.
    Safe when several processes start at once: one makes the file, one writes the rows, all end with the same ring.
    Errors: `KeyRingError` when database and file do not belong together, `StoreError`.
    """
    ring = _load_if_there(path)
    if ring is None:
        ring = await _first_ring(database, path)
    # Looked at first: whoever opens is not to wait for somebody who writes.
    found = await database.read(registered_ring, ring)
    return await database.transact(register_ring, ring) if found is None else found


async def _first_ring(database: Database, path: Path) -> KeyRing:
    try:
        await database.read(_refuse_new_ring, path)
    except KeyRingError:
        ring = _load_if_there(path)
        if ring is None:
            raise
        return ring  # another process made and registered it between our look at the file and that at the database
    return _create_or_load(path)


def register_ring(connection: sa.Connection, ring: KeyRing, by: AuditRow = _FOUND) -> KeyRing:
    """Write the ring's ids and check values, and which one is active; gives it as agreed.

    Allowed while the database knows no ring and holds nothing sealed, and later for a ring that grew from the one it
    knows; the audit is told, as `by`, of each key that it grew by and of another one that is active.
    Locks: `lock_ring`. Errors: `KeyRingError`; nothing was written.
    """
    lock_ring(connection)
    known = {row.id: row.active for row in _known(connection)}
    if not known and holds_sealed(connection):
        raise KeyRingError("the database holds sealed data of a key ring that it does not know")
    now = read_now(connection)
    rows = [{"id": id, "check_value": value, "active": False, "created_at": now} for id, value in _checks(ring).items()]
    # Whoever comes second finds the rows of the first and verifies against them.
    connection.execute(insert_into(connection.dialect.name, key_ring).on_conflict_do_nothing(), rows)
    ring = agreed_ring(connection, ring)
    connection.execute(sa.update(key_ring).values(active=key_ring.c.id == ring.active))
    if known:
        changes = [replace(by, decision="key_added", detail=id) for id in ring.keys if id not in known]
        if not known.get(ring.active):
            changes.append(replace(by, decision="key_activated", detail=ring.active))
        insert_audit(connection, changes, now)
    return ring


def is_behind(connection: sa.Connection, key_ids: Collection[str]) -> bool:
    """Tell whether these keys lack the active one, under which everything is or will soon be."""
    return connection.execute(LACKS_ACTIVE, {"ring": sorted(key_ids)}).first() is not None


def lock_ring(connection: sa.Connection) -> None:
    """Wait for others that change what the database knows of the ring, before anything of it is read.

    On SQLite the transaction is the only writer already.
    """
    if connection.dialect.name == "postgresql":
        lock_alone(connection, KEYS_KEY)


def agreed_ring(connection: sa.Connection, ring: KeyRing) -> KeyRing:
    """Give the ring with the newer one of two active keys, its own and the database's. Errors: as `verify_ring`."""
    verify_ring(connection, ring)
    active = next((row.id for row in _known(connection) if row.active), ring.active)
    return ring.at_least(active)


def verify_ring(connection: sa.Connection, ring: KeyRing | None) -> None:
    """See that the ring is the one that the database was sealed with; None = there is no file.

    Errors: `KeyRingError` when the database knows a ring and this one lacks its active key or its subkey, or has
    another key under a known id.
    """
    known = _known(connection)
    if ring is None:
        if known or holds_sealed(connection):
            raise KeyRingError("the key ring is missing, and the database holds what it sealed; restore the file")
        return
    checks = _checks(ring)
    for row in known:
        if checks.get(row.id, row.check_value) != row.check_value:
            raise KeyRingError(f"the key ring is another one than the database's: {row.id} differs")
    for row in known:
        if row.active and row.id not in checks:
            raise KeyRingError(f"the key ring lacks {row.id}, the database's active key; restore the newer file")


def holds_sealed(connection: sa.Connection) -> bool:
    """Tell whether any sealed column has a row."""
    return any(connection.execute(sa.select(table.c[name]).limit(1)).first() is not None for table, name in SEALED)


def registered_ring(connection: sa.Connection, ring: KeyRing) -> KeyRing | None:
    """Give the ring as agreed when the database knows all of it, else None. Errors: as `verify_ring`."""
    ring = agreed_ring(connection, ring)
    known = {row.id: row.active for row in _known(connection)}
    return ring if all(id in known for id in _checks(ring)) and known[ring.active] else None


def _refuse_new_ring(connection: sa.Connection, path: Path) -> None:
    try:
        verify_ring(connection, None)
    except KeyRingError as error:
        raise KeyRingError(f"{path}: {error}") from None


def _load_if_there(path: Path) -> KeyRing | None:
    return KeyRing.load(path) if path.exists() else None


def _create_or_load(path: Path) -> KeyRing:
    try:
        return KeyRing.create(path)
    except KeyRingError:
        if not path.exists():
            raise
    return KeyRing.load(path)  # another process was first


def _known(connection: sa.Connection) -> Sequence[sa.Row[str, str, bool]]:
    return connection.execute(sa.select(key_ring.c.id, key_ring.c.check_value, key_ring.c.active)).all()


def _checks(ring: KeyRing) -> dict[str, str]:
    return {name: check_value(key) for name, key in (*ring.keys.items(), (SUBKEY, ring.subkey))}
