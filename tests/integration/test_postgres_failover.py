"""A server that ends connections, or is away for a while: each step is committed exactly once, and none is given up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.postgres import server
from tests.support.stores import append, claim, created, entry, open_store, opened
from worker.adapters.sql.store import SqlRunStore
from worker.ports.records import Claimed, CommitStatus
from worker.ports.runs import StoreError

pytestmark = pytest.mark.postgres

RUNS = 24
KILLS = 275


class Load:
    """Runs that are driven; `committed` is set whenever one of them got on."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.committed = asyncio.Event()

    async def drive(self, store: SqlRunStore, held: Claimed) -> list[bytes]:
        """Commit steps one after the other, each once; gives what they carried."""
        carried: list[bytes] = []
        while not self.stop.is_set():
            carried.append(f"{held.row.uid}:{len(carried)}".encode())
            step = append(held, len(carried), entries=(entry(len(carried), payload=carried[-1]),))
            assert CommitStatus.COMMITTED == (await store.commit(step)).status
            self.committed.set()
        return carried


async def repeat(work: Callable[[], Awaitable[object]], stop: asyncio.Event) -> Counter[str]:
    """Do something that is not repeated for its caller, again and again; gives what came of it."""
    ends: Counter[str] = Counter()
    while not stop.is_set():
        try:
            await work()
            ends["fine"] += 1
        except StoreError as error:
            ends[error.problem] += 1
        await asyncio.sleep(0.005)
    return ends


async def end_backends(url: str, wanted: int, load: Load | None = None) -> int:
    """End server processes of a database, two at a time, until it were so many; in between the load gets on a bit."""
    name, ended, chance = url.rsplit("/", 1)[1], 0, random.Random(3)
    connection = await import_module("asyncpg").connect(server().url)
    chosen = "SELECT pid FROM pg_stat_activity WHERE datname = $1 ORDER BY random() LIMIT 2"
    try:
        while ended < wanted:
            ended += await connection.fetchval(f"SELECT count(pg_terminate_backend(pid)) FROM ({chosen}) c", name)
            if load is not None:
                load.committed.clear()
                await load.committed.wait()
                await asyncio.sleep(chance.random() * 0.01)
    finally:
        await connection.close()
    return ended


async def test_ended_connections_neither_lose_nor_repeat_a_step() -> None:
    with server().clone() as url:
        async with open_store(url, create=False) as both, asyncio.timeout(120):
            store = both.store
            for _ in range(RUNS):
                await created(store)
            held = await claim(store, RUNS)
            load = Load()
            stop = load.stop
            driving = [asyncio.create_task(load.drive(store, one)) for one in held]
            singles = [
                asyncio.create_task(repeat(lambda: created(store), stop)),
                asyncio.create_task(repeat(lambda: store.entries(held[0].row.uid), stop)),
                asyncio.create_task(repeat(lambda: store.wakeable(5, 0.0), stop)),
            ]

            try:
                assert await end_backends(url, KILLS, load) >= KILLS
            finally:
                stop.set()

            carried = [await task for task in driving]
            ends = [await task for task in singles]
            for one, payloads in zip(held, carried, strict=True):
                assert payloads == [found.payload for found in await store.entries(one.row.uid)]
            assert min(len(payloads) for payloads in carried) > 3
            # What comes singly is repeated a few times, then its caller is told that nothing happened or who knows.
            assert {"fine", "disconnected", "commit_unknown"} >= set().union(*ends)


async def test_a_server_that_is_away_for_a_while_costs_no_step(tmp_path: Path) -> None:
    async with opened("postgresql", tmp_path) as both:
        await created(both.store)
        [held] = await claim(both.store)
        name = str(both.database._backend._engine.url.database)  # type: ignore[attr-defined]
        server().execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await end_backends(f"/{name}", 1)
        began = time.monotonic()

        waiting = asyncio.create_task(both.store.commit(append(held, 1)))
        with pytest.raises(StoreError, match="unavailable"):
            await both.store.now()
        assert not waiting.done()
        server().execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

        done = await waiting
        assert CommitStatus.COMMITTED == done.status
        assert done.at > began
