"""Redis is emptied, killed, stopped and unreachable at any moment, and wake-ups come twice, late, never and as garbage.

Nobody dies of it: nothing is lost, nothing is repeated, and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
import redis

from tests.support.crash_load import Load, people
from tests.support.processes import Fleet, fleet
from tests.support.proxy import Proxy, proxy
from tests.support.world import eventually
from worker.ports.wakeups import MESSAGES_KEY, QUEUE_KEY

pytestmark = pytest.mark.crash

LEASE_S: Final = 5.0
"""Longer than anything here keeps a worker from renewing: who loses a lease has lost it to an outage."""


class Trouble:
    """What can be done to a queue while runs are under way."""

    def __init__(self, found: Fleet, load: Load, between: Proxy) -> None:
        self._found = found
        self._load = load
        self._between = between
        self._random = random.Random(5)
        self.done: list[str] = []

    async def make(self, times: int) -> None:
        """Make trouble again and again, whenever the runs got on; each kind as often as the others."""
        kinds = [self.flush, self.kill, self.stop, self.hang, self.cut, self.twice, self.late, self.garbage]
        for number in range(times):
            if number % len(kinds) == 0:
                self._random.shuffle(kinds)
            wanted = await self._load.progress() + 3
            await eventually(partial(self._moved, wanted), "the runs get on", seconds=60)
            kind = kinds[number % len(kinds)]
            self.done.append(kind.__name__)
            with suppress(redis.RedisError):
                await kind()

    async def _moved(self, entries: int) -> bool:
        return await self._load.progress() >= entries or all(r.finished_at for r in await self._load.rows())

    async def flush(self) -> None:
        self._found.client.flushall()

    async def kill(self) -> None:
        """Its keeper starts another one at once."""
        os.kill(self._pid(), signal.SIGKILL)

    async def stop(self) -> None:
        """It is there, and does not answer."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)
        os.kill(pid, signal.SIGCONT)

    async def hang(self) -> None:
        """The network is gone for one worker; no connection ends, and none gets through."""
        self._between.hang()
        await asyncio.sleep(0.3)
        self._between.go_on()

    async def cut(self) -> None:
        await self._between.cut()

    async def twice(self) -> None:
        await self._found.signals.wake(self._load.uuids * 2)

    async def late(self) -> None:
        """Wake runs that wait for a person, or have ended."""
        done = [row.uuid for row in await self._load.rows() if row.question or row.finished_at]
        await self._found.signals.wake(done)

    async def garbage(self) -> None:
        for number, body in enumerate((b"\xff\x00", b"{}", b"[" * 400, b"x" * 5000)):
            self._found.client.hset(MESSAGES_KEY, f"g{number}", body)
            self._found.client.rpush(QUEUE_KEY, f"g{number}")
        await self._found.signals.wake([str(uuid4())])

    def _pid(self) -> int:
        return int(self._found.client.info("server")["process_id"])


async def test_nothing_that_happens_to_redis_is_noticed_by_a_run(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1, lease_s=LEASE_S) as found:
        socket = found.server.url.removeprefix("unix://").partition("?")[0]
        async with proxy(lambda: asyncio.open_unix_connection(socket)) as between:
            await found.add("far", REGATE_BROKER_URL=f"redis://127.0.0.1:{between.port}/0")
            load = Load(world=found.world, wake=found.signals.wake)
            load.script(delay_ms=40)
            async with people(load):
                trouble = Trouble(found, load, between)
                making = asyncio.create_task(trouble.make(16))
                while not making.done():
                    await load.enqueue()
                    await asyncio.sleep(0.1)
                await making
                await load.ended(60)
            assert 8 == len(set(trouble.done))
            await load.check_undisturbed()
            for worker in found.workers:
                worker.signal(signal.SIGTERM)
                assert 0 == await worker.ended()


async def test_without_any_redis_the_sweepers_find_every_run(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, lease_s=LEASE_S) as found:
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=20)
        keeper = int((tmp_path / "broker" / "keeper.lock").read_text())
        os.kill(keeper, signal.SIGKILL)  # the kernel takes its server along, and nobody starts another
        await eventually(lambda: not _answers(found.client), "Redis is gone")

        async with people(load):
            await load.enqueue(6)
            await load.ended(60)

        await load.check_undisturbed()
        assert not _answers(found.client)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
