"""Workers are asked to end and replaced under load: no run is lost, no attempt counted, and none waits for a lease."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.crash_load import Load, people
from tests.support.engines import engine_url, only_in_full
from tests.support.processes import Fleet, Worker, fleet
from tests.support.world import call, eventually, reply
from worker.ports.runs import StoreError

pytestmark = pytest.mark.crash

LEASE_S: Final = 30.0
"""The default: whatever had to wait for one would be seen at once."""
SWEEP_S: Final = 1.0
SLACK_S: Final = 4.0
"""For a machine that does many other things; far below a lease."""
KINDS: Final[dict[str, dict[str, Any]]] = {
    "worker": {"module": "tests.support.worker_process"},
    "up": {"module": "worker.cli.main", "arguments": ("up", "--no-web", "--log", "json")},
}


@asynccontextmanager
async def lateness(load: Load) -> AsyncIterator[list[float]]:
    """Look again and again how long the oldest due run has been due."""
    seen: list[float] = []

    async def look() -> None:
        while True:
            with suppress(StoreError):
                seen.append(await load.latest())
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def replace_all(found: Fleet, load: Load, kind: str, times: int) -> None:
    """End one worker after the other, each when the runs got on, and start another beside it."""
    for number in range(times):
        wanted = len(load.uuids) + 3
        await eventually(partial(_has, load, wanted), "load", seconds=60)
        old = found.workers[number]
        old.signal(signal.SIGTERM)
        await found.add(f"new{number}", **KINDS[kind])
        assert 0 == await old.ended(), old.logged()


def _has(load: Load, runs: int) -> bool:
    return len(load.uuids) >= runs


async def keep_coming(load: Load, until: asyncio.Task[None]) -> None:
    while not until.done():
        await load.enqueue()
        await asyncio.sleep(0.15)


@pytest.mark.parametrize(
    ("kind", "database"),
    [
        ("worker", "sqlite"),
        pytest.param("up", "postgresql", marks=pytest.mark.postgres),
        only_in_full("up", "sqlite"),
        only_in_full("worker", "postgresql"),
    ],
)
async def test_a_rolling_restart_is_noticed_by_no_run(tmp_path: Path, kind: str, database: str) -> None:
    async with (
        engine_url(database, tmp_path) as url,
        fleet(tmp_path, 0, url=url, lease_s=LEASE_S, REGATE_SWEEP_SECONDS=str(SWEEP_S)) as found,
    ):
        for number in range(2):
            await found.add(f"worker{number}", **KINDS[kind])
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=150)
        async with people(load), lateness(load) as late:
            replacing = asyncio.create_task(replace_all(found, load, kind, times=4))
            await keep_coming(load, replacing)
            await replacing
            await load.ended(60)

        assert len(load.uuids) >= 12
        await load.check_undisturbed()
        assert max(late) <= SWEEP_S + SLACK_S
        released = [await found.world.kinds(uuid) for uuid in load.uuids]
        assert any(kinds.count("run_resumed") > 2 for kinds in released), "no run was ever released by a drain"


async def slow_run(found: Fleet, *replies: Any) -> str:
    found.world.script(*replies)
    uuid = (await found.world.runtime.enqueue(found.world.ask())).uuid
    await found.signals.wake([uuid])
    return uuid


def draining(worker: Worker) -> bool:
    return "worker.draining" in worker.logged()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_signal_ends_a_worker_at_once(tmp_path: Path, kind: str) -> None:
    async with fleet(tmp_path, 0, lease_s=2.0) as found:
        worker = await found.add("first", **KINDS[kind])
        uuid = await slow_run(found, reply("late", delay_ms=60_000))
        await eventually(lambda: len(found.world.sent(uuid)) == 1, "the send is in the air", seconds=60)
        worker.signal(signal.SIGTERM)
        await eventually(lambda: draining(worker), "it drains", seconds=60)
        assert worker.returncode is None

        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert 130 == await worker.ended()
        assert time.monotonic() - began < 5

        found.world.script(reply("done"))
        await found.add("second", **KINDS[kind])
        shown = await found.world.rest(uuid)
        assert ("done", 2, 2) == (shown.answer, shown.attempts, len(found.world.sent(uuid)))


async def test_a_drain_waits_for_a_write_that_is_in_the_air(tmp_path: Path) -> None:
    """Nobody has to be asked what became of it, and it is not made again."""
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 1, lease_s=LEASE_S) as found:
        world, first = found.world, found.workers[0]
        uuid = await slow_run(found, reply("", call("write_once_at", gate=str(gate))), reply("done"))
        await world.rest(uuid)
        await world.decide(uuid)
        await found.signals.wake([uuid])
        await eventually(lambda: len(world.executed(uuid)) == 1, "the write is in the air", seconds=60)
        first.signal(signal.SIGTERM)
        await eventually(lambda: "intake.stopped" in first.logged(), "its runs are asked to let go", seconds=60)
        await found.add("second")
        gate.touch()

        assert 0 == await first.ended()
        shown = await world.rest(uuid)
        assert ("done", 2, 1) == (shown.answer, shown.attempts, len(world.executed(uuid)))
        await check_causes(found, uuid, ["answer", "drain"])


async def check_causes(found: Fleet, uuid: str, causes: Sequence[str]) -> None:
    """Check why each segment but the first one began."""
    events = await found.world.runtime.events(found.world.ask().actor, uuid)
    assert causes == [event["cause"] for event in events if event["kind"] == "run_resumed"]
