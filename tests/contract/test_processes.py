"""The table of processes: who lives by the database's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.stores import DATABASES, open_database
from worker.adapters.sql.engine import Database
from worker.adapters.sql.processes import Processes


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(request.param, tmp_path) as database:
        yield database


async def test_a_process_lives_while_it_beats(database: Database) -> None:
    processes = Processes(database)
    await processes.register("a", kind="worker", host="h", pid=1)
    database.shift_clock(5)
    await processes.register("b", kind="web", host="h", pid=2)
    database.shift_clock(20)
    assert await processes.beat("a")

    rows = await processes.list(10.0)

    assert [("a", "worker", 1, True), ("b", "web", 2, False)] == [(r.id, r.kind, r.pid, r.alive) for r in rows]
    assert rows[0].beat_at - rows[0].started_at == pytest.approx(20, abs=5)


async def test_a_process_that_starts_again_starts_anew(database: Database) -> None:
    processes = Processes(database)
    await processes.register("a", kind="worker", host="h", pid=1)
    database.shift_clock(100)

    await processes.register("a", kind="worker", host="h", pid=2)

    [row] = await processes.list(10.0)
    assert (2, True, row.beat_at) == (row.pid, row.alive, row.started_at)


async def test_removed_processes_are_gone(database: Database) -> None:
    processes = Processes(database)
    for name in ("a", "b", "c"):
        await processes.register(name, kind="worker", host="h", pid=1)
    database.shift_clock(100)
    await processes.beat("c")

    await processes.remove("a")
    await processes.remove("unknown")

    assert not await processes.beat("a")
    assert 1 == await processes.remove_silent(50.0)
    assert ["c"] == [row.id for row in await processes.list(10.0)]
