"""PostgreSQL is restarted, crashes, ends connections, loses answers to COMMIT and falls silent, under load."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.crash_load import Load, people
from tests.support.crash_points import POINT, TALLY, Strike, struck
from tests.support.engines import cloned
from tests.support.hasty_worker import WAIT
from tests.support.postgres import own_server, server
from tests.support.processes import Fleet, fleet
from tests.support.proxy import Proxy, proxy
from tests.support.world import call, eventually, reply

pytestmark = [pytest.mark.crash, pytest.mark.postgres]

LEASE_S: Final = 4.0
RUNS: Final = 12


@asynccontextmanager
async def through_proxy(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Give a proxy to the server of a URL, and the URL that leads through it."""
    parts = urlsplit(url)
    async with proxy(lambda: asyncio.open_connection("127.0.0.1", parts.port)) as between:
        yield between, url.replace(f":{parts.port}/", f":{between.port}/")


async def on_the_way(load: Load, entries: int) -> None:
    """Wait until the runs got on by so many entries, or have ended."""
    before = await load.progress()

    async def moved() -> bool:
        return await load.progress() >= before + entries or all(row.finished_at for row in await load.rows())

    await eventually(moved, "the runs get on", seconds=60)


async def begin(found: Fleet, delay_ms: int) -> Load:
    load = Load(world=found.world, wake=found.signals.wake)
    load.script(delay_ms=delay_ms)
    await load.enqueue(RUNS)
    return load


async def test_restarts_and_crashes_of_the_server_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with own_server() as own:
        async with cloned(own.server) as url, fleet(tmp_path, 2, url=url, lease_s=LEASE_S) as found:
            load = await begin(found, delay_ms=60)
            async with people(load):
                for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGQUIT, signal.SIGINT):
                    await on_the_way(load, 12)
                    own.stop(number)
                    await asyncio.sleep(0.3)
                    own.start()
                    await load.enqueue(2)
                await load.ended(90)

            # A claim or a load that met no server is given up to its lease; a reply is kept until it is stored.
            await load.check()
            await ended_well(found)


async def test_ended_connections_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async with cloned(server()) as url, fleet(tmp_path, 2, url=url, lease_s=LEASE_S) as found:
        load = await begin(found, delay_ms=40)
        name = url.rsplit("/", 1)[1]
        connection = await import_module("asyncpg").connect(server().url)
        chosen = "SELECT pid FROM pg_stat_activity WHERE datname = $1 ORDER BY random() LIMIT 3"
        ended = 0
        try:
            async with people(load):
                while ended < 60:
                    ended += await connection.fetchval(
                        f"SELECT count(pg_terminate_backend(pid)) FROM ({chosen}) c", name
                    )
                    await on_the_way(load, 2)
                    await load.enqueue(0 if ended % 5 else 1)
                await load.ended(90)
        finally:
            await connection.close()

        assert 0 == await load.check()
        await ended_well(found)


async def test_a_commit_whose_answer_is_lost_is_made_once(tmp_path: Path) -> None:
    """Nobody can tell from the lost connection whether it was made; the journal tells."""
    chance = random.Random(1)
    async with (
        cloned(server()) as url,
        through_proxy(url) as (between, far),
        fleet(tmp_path, 0, url=url, lease_s=LEASE_S) as found,
    ):
        await found.add("far", REGATE_DATABASE_URL=far)
        await found.add("far too", REGATE_DATABASE_URL=far)
        between.swallow = lambda data: b"COMMIT" in data and chance.random() < 0.2
        load = await begin(found, delay_ms=40)
        async with people(load):
            await load.ended(120)
        between.swallow = lambda _: False

        assert between.swallowed >= 10
        assert 0 == await load.check()
        await ended_well(found)


async def test_who_cannot_reach_the_database_any_more_loses_his_runs_and_does_nothing_with_them(tmp_path: Path) -> None:
    """The connections of one worker hang, half open, for longer than its lease; then they come back."""
    async with (
        cloned(server()) as url,
        through_proxy(url) as (between, far),
        fleet(tmp_path, 0, url=url, lease_s=1.5) as found,
    ):
        await found.add("far", module="tests.support.hasty_worker", REGATE_DATABASE_URL=far, **{WAIT: "2"})
        load = await begin(found, delay_ms=150)
        async with people(load):
            await on_the_way(load, 2 * RUNS)
            between.hang()
            await found.add("near")
            await load.ended(60)
            between.go_on()
            await load.enqueue(2)
            await load.ended(60)

        assert await load.check() > 0
        await ended_well(found)


async def test_who_is_stopped_inside_a_transaction_keeps_no_run_from_the_others(tmp_path: Path) -> None:
    """Its session is ended, and somebody else finishes the run while it still stands still."""
    async with asyncio.TaskGroup() as group:
        for point in ("claim", "renew", "model_replied"):
            folder = tmp_path / point
            folder.mkdir()
            group.create_task(stopped_inside(folder, f"{point}.before_commit"))


async def stopped_inside(folder: Path, point: str) -> None:
    strike = Strike(point=point, number=1, signal=signal.SIGSTOP)
    armed = {POINT: str(strike), TALLY: str(folder / "strike.tally")}
    async with cloned(server()) as url, fleet(folder, 0, url=url, lease_s=1.5) as found:
        first = await found.add("first", module="tests.support.crash_worker", **armed)
        found.world.script(reply("", call("echo", text="x"), delay_ms=1000), reply("done"))
        uuid = (await found.world.runtime.enqueue(found.world.ask())).uuid
        await found.signals.wake([uuid])
        await eventually(lambda: struck(folder / "strike.tally"), f"a stop at {point}", seconds=60)
        await found.add("second")

        assert "done" == (await found.world.rest(uuid)).answer
        assert first.returncode is None
        first.signal(signal.SIGCONT)
        found.world.repeated |= {line["key"] for line in found.world.executed()}
        await ended_well(found)


async def ended_well(found: Fleet) -> None:
    """End the workers in order: none of them was broken by what happened."""
    for worker in found.workers:
        worker.signal(signal.SIGTERM)
    for worker in found.workers:
        assert 0 == await worker.ended(), worker.logged()
