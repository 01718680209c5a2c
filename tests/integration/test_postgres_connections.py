"""Connections: run tasks never hold one, so that cancelling them costs none; and no lane waits for another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.postgres import server
from tests.support.stores import FILES, OpenedStore, append, claim, created, opened
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.adapters.sql.lanes import Lane
from worker.adapters.sql.postgres import PostgresBackend
from worker.adapters.sql.sqlite import SqliteBackend
from worker.ports.records import Claimed, CommitStatus, RunFilter
from worker.ports.runs import StoreError

TASKS = 2000
RUNS = 50
SINGLES = 3


def count_connects(database: Database) -> list[str]:
    """Collect a mark for every connection that is opened from now on."""
    backend = database._backend
    opened: list[str] = []
    if isinstance(backend, PostgresBackend):
        engines = {backend._engine.sync_engine}
    else:
        assert isinstance(backend, SqliteBackend)
        engines = {backend._writes, backend._reads}
    for engine in engines:
        sa.event.listen(engine, "connect", lambda *_: opened.append("opened"))
    return opened


async def drive(both: OpenedStore, held: list[Claimed], seed: int) -> None:
    """Do what run tasks do, without an end."""
    chance, store = random.Random(seed), both.store
    while True:
        one = chance.choice(held)
        row = await store.run(one.row.uuid)
        assert row is not None
        match chance.randrange(6):
            case 0:
                await store.entries(row.uid)
            case 1:
                await store.runs(RunFilter(limit=3))
            case 2:
                await created(store)
            case 3:
                await store.renew([(row.uid, one.token)], 30.0)
            case _:
                await store.commit(append(one, row.seq + 1))


async def cancel_many(both: OpenedStore, held: list[Claimed]) -> int:
    """Start tasks and cancel each after a moment; gives how many were cancelled."""
    chance, cancelled, tasks = random.Random(7), 0, []
    loop = asyncio.get_running_loop()
    for seed in range(TASKS):
        task = loop.create_task(drive(both, held, seed))
        loop.call_later(chance.random() * 0.1, task.cancel)
        tasks.append(task)
        if len(tasks) == 200:
            cancelled += await _settled(tasks)
    return cancelled + await _settled(tasks)


async def _settled(tasks: list[asyncio.Task[None]]) -> int:
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
    return sum(isinstance(end, asyncio.CancelledError) for end in ended)


@pytest.mark.parametrize("kind", FILES)
async def test_cancelling_two_thousand_tasks_opens_no_connection(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as both:
        connects = count_connects(both.database)
        for _ in range(RUNS):
            await created(both.store)
        held = await claim(both.store, RUNS)

        assert TASKS == await cancel_many(both, held)
        await both.store.stop()  # a step that was submitted is never withdrawn: the last ones may still be on their way

        assert len(connects) <= 5  # the pool, once
        for one in held:
            row = await both.store.run(one.row.uuid)
            assert row is not None
            assert [entry.seq for entry in await both.store.entries(row.uid)] == list(range(1, row.seq + 1))
            assert CommitStatus.COMMITTED == (await both.store.commit(append(one, row.seq + 1))).status
        if kind == "postgresql":
            assert await sessions(both.database) <= 5


async def sessions(database: Database) -> int:
    """Count the server's processes for this database."""
    mine = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    return await database.read(lambda connection: int(connection.execute(mine).scalar_one()))


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[None]:
    """Keep every connection of those that come singly busy."""
    leave, inside = asyncio.Event(), asyncio.Semaphore(0)

    def stay(connection: sa.Connection) -> None:
        read_now(connection)
        inside.release()
        sa.util.await_only(leave.wait())

    staying = [asyncio.create_task(database.transact(stay)) for _ in range(SINGLES)]
    for _ in staying:
        await inside.acquire()
    try:
        yield
    finally:
        leave.set()
        await asyncio.gather(*staying)


@pytest.mark.postgres
async def test_steps_and_reads_do_not_wait_for_what_comes_singly(tmp_path: Path) -> None:
    async with opened("postgresql", tmp_path) as both:
        await created(both.store)
        [held] = await claim(both.store)
        async with busy(both.database), asyncio.timeout(20):
            assert CommitStatus.COMMITTED == (await both.store.commit(append(held, 1))).status
            assert await both.store.run(held.row.uuid) is not None
            assert [True] == [renewal.held for renewal in await both.store.renew([(held.row.uid, "t1")], 30.0)]


@pytest.mark.postgres
async def test_who_waits_too_long_for_a_turn_is_told() -> None:
    with server().clone() as url:
        database = Database.open(url, wait_s=0.5)
        async with busy(database):
            with pytest.raises(StoreError, match="busy"):
                await database.transact(read_now)
            left = asyncio.create_task(database.transact(read_now))
            await asyncio.sleep(0)
            left.cancel()
        assert await database.transact(read_now) > 0  # nobody's turn was lost
        await asyncio.gather(*(database.read(read_now) for _ in range(10)))
        await database.close()


@pytest.mark.postgres
async def test_closing_waits_for_what_was_left_running(tmp_path: Path) -> None:
    with server().clone() as url:
        database = Database.open(url)
        done: list[Any] = []

        def slow(connection: sa.Connection) -> None:
            connection.execute(sa.text("SELECT pg_sleep(0.3)"))
            done.append("done")

        left = asyncio.create_task(database.on(Lane.STEPS).transact(slow))
        while not database._backend._running:  # type: ignore[attr-defined] # noqa: ASYNC110
            await asyncio.sleep(0)
        left.cancel()
        await database.close()

        assert ["done"] == done
