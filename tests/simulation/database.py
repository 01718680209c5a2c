"""One database in memory for all simulated processes: the real statements, virtual time, and answers that get lost.

Each unit of work runs at once and whole, at a moment between its question and its answer; before, after and instead of
it the world may do harm. A database's clock is the kernel's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from worker.adapters.sql.clock import CLOCK_OPTION, Clock
from worker.adapters.sql.errors import DATABASE_ERRORS, CommitUnknownError
from worker.adapters.sql.lanes import Lane
from worker.adapters.sql.sqlite import _prepare

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from tests.simulation.fleet import Process

__all__ = ["MemoryDatabase", "SimulatedBackend"]

T = TypeVar("T")

_EPOCH_DAY: Final = 2440587.5
"""1970-01-01 as SQLite's julianday counts. Virtual second 0 is then."""

_DULL: Final = "take_wakeable"
"""The sweeper's mark: it is written all the time, and to die around it means nothing."""


class MemoryDatabase:
    """The only SQLite connection, used by one unit of work at a time. There is one of these in a Python process."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = float
        self.engine = sa.create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}, hide_parameters=True
        )
        sa.event.listen(self.engine, "connect", lambda raw, _: _prepare(raw, 0.0))
        borrowed = self.engine.raw_connection()
        raw = borrowed.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        borrowed.close()
        raw.create_function("julianday", 1, self._julianday)
        self.raw = raw

    @staticmethod
    @cache
    def shared() -> MemoryDatabase:
        """Give the one of this process: its compiled statements serve every schedule."""
        return MemoryDatabase()

    def copy(self) -> sqlite3.Connection:
        """Give a copy of everything that is stored."""
        copied = sqlite3.connect(":memory:", check_same_thread=False)
        self.raw.backup(copied)
        return copied

    def load(self, content: sqlite3.Connection) -> None:
        """Hold exactly what `copy` gave. Not `deserialize`: after it SQLite 3.40 crashes when it prepares json_each."""
        content.backup(self.raw)

    @contextmanager
    def transaction(self, engine: sa.Engine, *, write: bool) -> Iterator[sa.Connection]:
        """Run on a connection with this engine's options; commits, or rolls back what raised."""
        with engine.connect() as connection, connection.begin():
            self.raw.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield connection

    def _julianday(self, _: str) -> float:
        return _EPOCH_DAY + self.now() / 86400.0


class _RolledBackError(Exception):
    """Undoes a transaction whose COMMIT never arrived."""


@dataclass(slots=True)
class _Asked:
    """A unit of work on its way to the database."""

    name: str
    work: Callable[[sa.Connection], Any]
    write: bool
    answer: asyncio.Future[Any]


class SimulatedBackend:
    """How one simulated process reaches the database. Its questions overtake each other, as on several connections."""

    errors = (*DATABASE_ERRORS, sqlite3.Error)

    def __init__(self, process: Process, clock: Clock) -> None:
        self._process = process
        self._sim = process.sim
        self._database = process.sim.database
        self._engine = self._database.engine.execution_options(**{CLOCK_OPTION: clock})

    async def write(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """See `Database`."""
        done: T = await self._ask(work, write=True)
        return done

    async def read(self, work: Callable[[sa.Connection], T], lane: Lane) -> T:
        """See `Database`."""
        done: T = await self._ask(work, write=False)
        return done

    async def close(self) -> None:
        """Nothing is open."""

    async def _ask(self, work: Callable[[sa.Connection], Any], *, write: bool) -> Any:
        await self._process.point("db.asked")
        asked = _Asked(_name(work), work, write, self._process.loop.create_future())
        self._sim.kernel.after(self._sim.weather.way(), self._arrive, asked)
        return await asked.answer

    def _arrive(self, asked: _Asked) -> None:
        """Meet the database: away, or there, with the COMMIT's answer lost or not."""
        process, weather = self._process, self._sim.weather
        if (asked.answer.cancelled() or process.dead) and weather.withdrawn():
            return
        if weather.database_away(process):
            self._settle(asked, ConnectionRefusedError())
            return
        if asked.write and asked.name != _DULL:
            process.spring("commit.before")
            if process.dead:
                return
        unknown = asked.write and weather.commit_unknown()
        try:
            result = self._run(asked, undone=unknown and weather.undone())
        except _RolledBackError:
            self._sim.note(process, "db.undone", work=asked.name)
            self._settle(asked, CommitUnknownError())
            return
        except Exception as error:  # noqa: BLE001 - it belongs to who asked
            self._settle(asked, error)
            return
        if asked.write:
            self._sim.committed(process, asked.name)
            if asked.name != _DULL:
                process.spring("commit.after")
        process.gave_up |= unknown  # what it claimed, and cannot know of
        self._settle(asked, CommitUnknownError() if unknown else None, result)

    def _run(self, asked: _Asked, *, undone: bool) -> Any:
        with self._database.transaction(self._engine, write=asked.write) as connection:
            result = asked.work(connection)
            if undone:
                raise _RolledBackError
            return result

    def _settle(self, asked: _Asked, error: Exception | None, result: Any = None) -> None:
        self._sim.kernel.after(self._sim.weather.way(), self._deliver, asked, error, result)

    def _deliver(self, asked: _Asked, error: Exception | None, result: Any) -> None:
        if asked.answer.done() or self._process.dead:
            return
        if error is None:
            asked.answer.set_result(result)
        else:
            asked.answer.set_exception(error)


def _name(work: Callable[..., Any]) -> str:
    """Name a unit of work for the trace: the function below `Database`'s own wrapping."""
    inner: Any = work
    while isinstance(inner, partial):
        inner = inner.args[0] if inner.func.__name__ == "_call" else inner.func
    return str(getattr(inner, "__name__", "work"))
