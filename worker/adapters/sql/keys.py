"""The database's memory of the key ring: ids and check values, so that a lost or foreign ring is noticed at start-up.

A ring is made only while the database holds nothing sealed. Otherwise a lost file would be replaced in silence, and
everything that the old one sealed would be lost with a working system on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from worker.adapters.sealing import KeyRing, KeyRingError, check_value
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.sealed import SEALED
from worker.adapters.sql.tables import key_ring
from worker.adapters.sql.writes import insert_into

__all__ = ["ensure_ring", "holds_sealed", "register_ring", "verify_ring"]

_SUBKEY: Final = "subkey"
"""Id under which the subkey's check value is kept; keys of a ring are named `k-…`."""


async def ensure_ring(database: Database, path: Path) -> KeyRing:
    """Give the ring in `path`, made now if database and file are both new; afterwards the database knows it.

    Safe when several processes start at once: one makes the file, one writes the rows, all end with the same ring.
    Errors: `KeyRingError` when database and file do not belong together, `StoreError`.
    """
    ring = _load_if_there(path)
    if ring is None:
        ring = await _first_ring(database, path)
    if not await database.read(_is_registered, ring):  # whoever opens is not to wait for somebody who writes
        await database.transact(register_ring, ring)
    return ring


async def _first_ring(database: Database, path: Path) -> KeyRing:
    try:
        await database.read(_refuse_new_ring, path)
    except KeyRingError:
        ring = _load_if_there(path)
        if ring is None:
            raise
        return ring  # another process made and registered it between our look at the file and that at the database
    return _create_or_load(path)


def register_ring(connection: sa.Connection, ring: KeyRing) -> None:
    """Write the ring's ids and check values, and which one is active.

    Allowed while the database knows no ring and holds nothing sealed, and later for a ring that grew from the one it
    knows.
    Errors: `KeyRingError`; nothing was written.
    """
    if not _known(connection) and holds_sealed(connection):
        raise KeyRingError("the database holds sealed data of a key ring that it does not know")
    now = read_now(connection)
    rows = [{"id": id, "check_value": value, "active": False, "created_at": now} for id, value in _checks(ring).items()]
    # Whoever comes second finds the rows of the first and verifies against them.
    connection.execute(insert_into(connection.dialect.name, key_ring).on_conflict_do_nothing(), rows)
    verify_ring(connection, ring)
    connection.execute(sa.update(key_ring).values(active=key_ring.c.id == ring.active))


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


def _is_registered(connection: sa.Connection, ring: KeyRing) -> bool:
    verify_ring(connection, ring)
    return any(row.active and row.id == ring.active for row in _known(connection))


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
    return {name: check_value(key) for name, key in (*ring.keys.items(), (_SUBKEY, ring.subkey))}
