"""A database file that cannot grow: each step waits for room, and none is given up or committed twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy as sa

from tests.support.stores import append, claim, created, entry, opened
from worker.ports.records import CommitStatus

LARGE = 3_000_000
"""Bytes, more than SQLite keeps in memory: it meets the full disk long before COMMIT."""


def limit(connection: sa.Connection, pages: int | None) -> None:
    """Let the file have no more pages than it has now, or so many."""
    now = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    connection.exec_driver_sql(f"PRAGMA max_page_count = {now if pages is None else pages}")


async def test_a_step_that_finds_no_room_is_committed_when_there_is_some(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as both:
        await created(both.store)
        [held] = await claim(both.store)
        await both.database.transact(limit, None)

        step = append(held, 1, entries=(entry(1, payload=bytes(LARGE)),))
        waiting = asyncio.create_task(both.store.commit(step))
        await asyncio.wait([waiting], timeout=0.5)  # two tries, a fifth of a second apart
        assert not waiting.done(), await waiting
        await both.database.transact(limit, 1_000_000)

        assert CommitStatus.COMMITTED == (await waiting).status
        assert [1] == [found.seq for found in await both.store.entries(held.row.uid)]
