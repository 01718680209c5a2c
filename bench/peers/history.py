"""A small store for libraries that leave storing to their user: what is stored of a run, in two tables.

SQLAlchemy's asynchronous engine with its usual drivers, aiosqlite and asyncpg; one transaction a step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.measuring import Case

__all__ = ["History", "open_engine"]

_METADATA: Final = sa.MetaData()
_RUN: Final = sa.Table(
    "run",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
_STEP: Final = sa.Table(
    "step",
    _METADATA,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)


def _durable(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


@asynccontextmanager
async def open_engine(case: Case) -> AsyncIterator[AsyncEngine]:
    """Open an engine as its users do. SQLite takes one writer at a time, so more connections would only wait."""
    if case.engine == "sqlite":
        engine = create_async_engine(case.url_for("aiosqlite"), pool_size=1, max_overflow=0, pool_timeout=120)
        sa.event.listen(engine.sync_engine, "connect", _durable)
    else:
        engine = create_async_engine(case.url_for("asyncpg"), pool_size=16, max_overflow=0, pool_timeout=120)
    try:
        yield engine
    finally:
        await engine.dispose()


class History:
    """Rows of runs and of their steps."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def create(self) -> None:
        """Make the tables."""
        async with self._engine.begin() as connection:
            await connection.run_sync(_METADATA.create_all)

    async def begin(self, run: str, asked: str) -> None:
        """Store a run."""
        await self._execute(sa.insert(_RUN).values(id=run, status="running", state=asked))

    async def step(self, run: str, seq: int, body: str) -> None:
        """Store a step."""
        await self._execute(sa.insert(_STEP).values(run_id=run, seq=seq, body=body))

    async def rest(self, run: str, status: str, state: str) -> None:
        """Store what a run needs to go on, or its end."""
        await self._execute(sa.update(_RUN).where(_RUN.c.id == run).values(status=status, state=state))

    async def resume(self, run: str) -> str:
        """Take a waiting run and give its state."""
        taken = sa.update(_RUN).where(_RUN.c.id == run, _RUN.c.status == "waiting").values(status="running")
        async with self._engine.begin() as connection:
            return str((await connection.execute(taken.returning(_RUN.c.state))).scalar_one())

    async def _execute(self, statement: sa.Executable) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(statement)
