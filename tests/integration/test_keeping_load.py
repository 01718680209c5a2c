"""Keys are rotated and runs purged while others are started, driven, answered and recovered: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, RunStatus
from tests.support.hosts import nothing
from tests.support.stores import FILES, database_url
from tests.support.world import World, call, eventually, open_world, reply
from worker.adapters.sql.purge import SqlPurging
from worker.adapters.sql.rotation import SqlKeys
from worker.ports.keeping import Rotation, Wanted
from worker.ports.records import RunFilter

ROTATIONS = 3


@pytest.fixture(params=FILES)
async def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[World]]:
    """Two processes of one installation; the second one checks everything at the end."""
    with database_url(request.param, tmp_path) as url:
        async with AsyncExitStack() as stack:
            made = []
            for number in range(2):
                where = url if request.param == "postgresql" else None
                opened = open_world(
                    tmp_path, url=where, create=number == 0, sweeps=True, checks=number == 0, sweep_s=0.2
                )
                made.append(await stack.enter_async_context(opened))
            yield made


async def rotate(world: World) -> Rotation:
    keys = SqlKeys(world.database, world.folder / "keys.json")
    return await keys.rotate(add=True, actor="grace", via="test", progress=nothing)


async def start(worlds: list[World], ended: asyncio.Event, started: list[str]) -> None:
    """Start runs at both, by turns, until told to stop."""
    while not ended.is_set():
        for world in worlds:
            started.append((await world.runtime.enqueue(world.ask())).uuid)
        await asyncio.sleep(0.05)


async def answer(world: World, ended: asyncio.Event) -> None:
    """Say yes to everything, until every run that was started has ended."""
    while not ended.is_set() or any(not over(row.status) for row in await world.store.runs(RunFilter())):
        for row in await world.store.runs(RunFilter(statuses=tuple(WAITING_STATUSES))):
            if row.cause is None and row.answered_by is None:
                await world.decide(row.uuid)
        await asyncio.sleep(0.02)


def over(status: RunStatus) -> bool:
    return status in FINAL_STATUSES


async def purge(world: World, ended: asyncio.Event) -> int:
    """Purge what has ended, some at a time."""
    wanted = Wanted(statuses=(RunStatus.COMPLETED,), before=4e9, limit=3)
    done = 0
    while not ended.is_set():
        done += await SqlPurging(world.database, "sqlite://").purge(wanted, actor="g", via="test", progress=nothing)
        await asyncio.sleep(0.3)
    return done


async def test_rotations_and_purges_under_load_lose_nothing(worlds: list[World]) -> None:
    first, second = worlds
    first.script(reply("", call("refund_order", order=7)), reply("", call("echo", "c2", text="x")), reply("done"))
    ended, started = asyncio.Event(), list[str]()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(start(worlds, ended, started))
        group.create_task(answer(second, ended))
        purging = group.create_task(purge(second, ended))
        await eventually(lambda: len(started) > 10, "there is a load")
        active = {(await rotate(first)).active for _ in range(ROTATIONS)}
        ended.set()
    rows = await first.store.runs(RunFilter())
    gone = {row.uuid for row in rows if row.purged}
    first.damaged |= gone

    assert ROTATIONS == len(active)
    assert len(gone) == purging.result() > 0
    assert sorted(started) == sorted(row.uuid for row in rows)
    assert {RunStatus.COMPLETED} == {row.status for row in rows}
    for row in (row for row in rows if not row.purged):
        assert "done" == (await second.show(row.uuid)).answer
    last = await rotate(second)
    assert () == last.left
    assert {last.active} == {row.key_id for row in await first.store.runs(RunFilter()) if not row.purged}
    assert [] == [log for world in worlds for log in world.logs if log[0] in ("run.unreadable", "run.crashed")]
