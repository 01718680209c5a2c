"""PostgreSQL's advisory locks: the keys of all of them, and the border between commits of steps and a change of policy.

Every lock ends with its transaction, so each works behind a pooler that lends connections for one transaction. On
SQLite there is one writer anyway, and nothing here is used.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import sqlalchemy as sa

__all__ = ["CATALOGUE_KEY", "KEYS_KEY", "MIGRATION_KEY", "POLICY_KEY", "bounded", "lock_alone", "policy_gate"]

CATALOGUE_KEY: Final = int.from_bytes(b"regatcat")
"""One catalogue writer at a time, for the whole of its transaction."""
KEYS_KEY: Final = int.from_bytes(b"regatkey")
"""One change of what the database knows of the key ring at a time."""
MIGRATION_KEY: Final = 0x7265_6761_7465  # "regate"
"""One migration at a time."""
POLICY_KEY: Final = int.from_bytes(b"regatpol")
"""Shared by commits of steps, alone for who raises the catalogue's version. Any numbers that nobody else takes."""

_IDLE: Final = "5s"
"""Between two statements of a transaction that others wait for. Ours never pause in between, so a longer one belongs to
a process that was stopped; the server then ends it. At double, a stopped process keeps the whole fleet for a third of a
lease; at a tenth, a busy loop would lose work that it has to repeat."""


def lock_alone(connection: sa.Connection, key: int) -> None:
    """Wait for an advisory lock and keep it to the end of the transaction, which may not pause from now on."""
    connection.execute(_alone(), {"key": key})


@cache
def _alone() -> sa.Select[str, None]:
    key = sa.bindparam("key", type_=sa.BigInteger)
    # In this order: the lock is waited for last, in the outer SELECT.
    bound = sa.select(bounded().label("idle")).cte("bound")
    return sa.select(bound.c.idle, sa.func.pg_advisory_xact_lock(key)).select_from(bound)


def bounded() -> sa.Function[str]:
    """Build the expression that lets the server end the session when the transaction pauses from now on."""
    return sa.func.set_config("idle_in_transaction_session_timeout", _IDLE, True, type_=sa.Text)


def policy_gate() -> sa.CTE:
    """Build a FROM clause of one row that takes the shared lock of policy before its row is there.

    The row lock on the version alone would be enough for the border, but not for fairness: row locks that are shared
    let others in past one who waits to change the row, and with enough processes there is always one inside. Advisory
    locks stand in one queue.
    """
    shared = sa.func.pg_advisory_xact_lock_shared(sa.literal(POLICY_KEY, sa.BigInteger))
    return sa.select(bounded().label("idle"), shared.label("entered")).cte("gate")
