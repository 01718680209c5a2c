"""The database's clock. Everything that expires is decided by it, so that no two machines have to agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from worker.adapters.sql.locks import bounded

__all__ = ["CLOCK_OPTION", "SHIFT", "Clock", "lock_time", "monotonic_of", "now_column", "read_now", "shift_of"]

CLOCK_OPTION = "regate_clock"
"""Name of the engine's execution option that holds its `Clock`."""
SHIFT = "clock_shift"
"""Name of the parameter in `now_column`."""

_SHIFT = sa.bindparam(SHIFT, type_=sa.Double)
# SQLite: unixepoch('subsec') came with 3.42; julianday has milliseconds everywhere.
_SQLITE_NOW = sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double) + _SHIFT
# clock_timestamp, not now(): the latter is the transaction's start, before any wait for a lock.
_POSTGRES_NOW = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double) + _SHIFT


class Clock:
    """What a test may change about time: seconds added to the database's clock, and this process's own clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.shift_s = 0.0
        self.monotonic = monotonic


def now_column(dialect: str) -> sa.ColumnElement[float]:
    """Build the expression of the present, in seconds since the epoch; takes the parameter `SHIFT`."""
    return _SQLITE_NOW if dialect == "sqlite" else _POSTGRES_NOW


_NOW = {name: sa.select(now_column(name)) for name in ("sqlite", "postgresql")}
_LOCK_TIME = _NOW | {"postgresql": sa.select(now_column("postgresql"), bounded())}


def read_now(connection: sa.Connection) -> float:
    """Read the database's clock. Units: seconds since the epoch; SQLite counts milliseconds."""
    return float(connection.execute(_NOW[connection.dialect.name], shift_of(connection)).scalar_one())


def lock_time(connection: sa.Connection) -> float:
    """Read the clock in a transaction of ours that goes on to lock rows of runs, which others wait for or pass by.

    On PostgreSQL it may not pause from now on: whoever is stopped inside would keep them for as long as that lasts.
    """
    return float(connection.execute(_LOCK_TIME[connection.dialect.name], shift_of(connection)).scalar_one())


def shift_of(connection: sa.Connection) -> dict[str, Any]:
    """Give the parameter that `now_column` needs on this connection."""
    clock = _clock_of(connection)
    return {SHIFT: clock.shift_s if clock is not None else 0.0}


def monotonic_of(connection: sa.Connection) -> float:
    """Read the monotonic clock of the process that works on this connection, in seconds."""
    clock = _clock_of(connection)
    return clock.monotonic() if clock is not None else time.monotonic()


def _clock_of(connection: sa.Connection) -> Clock | None:
    clock: Clock | None = connection.get_execution_options().get(CLOCK_OPTION)
    return clock
