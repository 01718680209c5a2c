"""Statements of a rotation: which rows are wrapped by which key, and wrapping them anew. No content is read or written.

Rows are runs and records of the catalogue, deleted records too: their texts are sealed like the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from worker.adapters.sealing import KeyRing
from worker.adapters.sql.batch import Batch
from worker.adapters.sql.catalogue_tables import configuration, skill, snippet
from worker.adapters.sql.tables import run
from worker.ports.sealing import SealBrokenError

__all__ = ["WRAPPED", "count_wrapped", "find_under", "rewrap_rows"]

WRAPPED: Final = (run, configuration, snippet, skill)
"""Every table with a wrapped data key, its key's id and a `uid`."""

_CHOSEN: Final = Batch(uid=sa.BigInteger)
_ANEW: Final = Batch(uid=sa.BigInteger, key_id=sa.Text, wrapped=sa.LargeBinary)


def count_wrapped(connection: sa.Connection, table: sa.Table) -> dict[str, int]:
    """Count rows by the key that wraps them; a purged run has none. Reads the table whole, for somebody who asks."""
    counted = sa.select(table.c.key_id, sa.func.count().label("rows")).where(table.c.wrapped_key.is_not(None))
    return {row.key_id: row.rows for row in connection.execute(counted.group_by(table.c.key_id))}


def find_under(connection: sa.Connection, table: sa.Table, keys: Sequence[str], after: int, most: int) -> list[int]:
    """Find rows under some keys, in the order of their uids. Locks nothing. Index: the primary key."""
    found = connection.execute(_under(table), {"keys": sorted(keys), "after": after, "most": most})
    return list(found.scalars())


@cache
def _under(table: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(table.c.uid)
        .where(
            table.c.uid > sa.bindparam("after", type_=sa.BigInteger),
            table.c.key_id.in_(sa.bindparam("keys", expanding=True, type_=sa.Text)),
            table.c.wrapped_key.is_not(None),
        )
        .order_by(table.c.uid)
        .limit(sa.bindparam("most", type_=sa.Integer))
    )


def rewrap_rows(connection: sa.Connection, table: sa.Table, ring: KeyRing, uids: Sequence[int]) -> int:
    """Wrap the data keys of rows anew, under the ring's active key; gives how many rows were changed.

    Locks the rows by uid, as commits of steps do. Guard: the key that wrapped it is still the one that was read, and is
    there: who purges a run or rotates at the same time comes before or after. What cannot be unwrapped is left as it
    is. Index: the primary key.
    """
    dialect = connection.dialect.name
    rows = connection.execute(_locked(dialect, table), _CHOSEN.parameters(dialect, [(uid,) for uid in uids]))
    anew = [(row.uid, row.key_id, wrapped) for row in rows if (wrapped := _wrapped(ring, row)) is not None]
    if not anew:
        return 0
    parameters = _ANEW.parameters(dialect, anew) | {"under": ring.active}
    return connection.execute(_update(dialect, table), parameters).rowcount


def _wrapped(ring: KeyRing, row: sa.Row[Any]) -> bytes | None:
    if row.key_id == ring.active or row.key_id not in ring.keys:
        return None
    try:
        return ring.wrapped(ring.unwrapped(row.wrapped_key, row.key_id))
    except (SealBrokenError, TypeError):  # TypeError: a cell that holds no bytes
        return None


@cache
def _locked(dialect: str, table: sa.Table) -> sa.Select[Any]:
    chosen = _CHOSEN.source(dialect)
    return (
        sa.select(table.c.uid, table.c.key_id, table.c.wrapped_key)
        .join(chosen, table.c.uid == chosen.c.uid)
        .where(table.c.wrapped_key.is_not(None))
        .order_by(table.c.uid)
        .with_for_update(of=table)
    )


@cache
def _update(dialect: str, table: sa.Table) -> sa.Update:
    b = _ANEW.source(dialect).c
    return (
        sa.update(table)
        .values(wrapped_key=b.wrapped, key_id=sa.bindparam("under", type_=sa.Text))
        .where(table.c.uid == b.uid, table.c.key_id == b.key_id, table.c.wrapped_key.is_not(None))
    )
