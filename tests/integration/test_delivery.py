"""Wake-ups against a real queue and real worker processes: repeated, lost, forged or impossible, a run runs once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from codec.vocabulary import RunStatus
from tests.support.processes import fleet
from tests.support.world import World, call, eventually, open_world, reply
from worker.ports.wakeups import MESSAGES_KEY, QUEUE_KEY, encode_wakeup

SECRET: Final = "zq7" + "marker"


def script(world: World) -> None:
    world.script(reply("", call("echo", text=SECRET)), reply("done"))


async def queued(world: World, count: int) -> list[str]:
    """Store runs and tell nobody."""
    return [(await world.runtime.enqueue(world.ask(f"{SECRET} {n}"))).uuid for n in range(count)]


async def test_a_run_that_is_woken_ten_times_in_two_processes_runs_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as found:
        script(found.world)
        uuids = await queued(found.world, 5)

        await asyncio.gather(*(found.signals.wake(uuids) for _ in range(10)))

        for uuid in uuids:
            assert "done" == (await found.world.rest(uuid)).answer
            assert (1, 2) == (len(found.world.executed(uuid)), len(found.world.sent(uuid)))
            assert 1 == (await found.world.row(uuid)).attempts
        await found.signals.wake(uuids)
        await eventually(lambda: found.client.llen(QUEUE_KEY) == 0, "the queue is empty")
        assert {RunStatus.COMPLETED} == {(await found.world.show(uuid)).status for uuid in uuids}
        assert 10 == len(found.world.sent())


async def test_garbage_and_strangers_in_the_queue_keep_nothing_from_running(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as found:
        script(found.world)
        [uuid] = await queued(found.world, 1)
        stranger = str(uuid4())
        for number, body in enumerate((b"\xff\x00", b"{}", SECRET.encode(), b"[" * 400)):
            found.client.hset(MESSAGES_KEY, f"g{number}", body)
            found.client.rpush(QUEUE_KEY, f"g{number}")
        found.client.rpush(QUEUE_KEY, "nothing-behind-it")
        unknown = encode_wakeup(stranger, message_id=str(uuid4()), redis_id="u", timestamp_ms=1)
        found.client.hset(MESSAGES_KEY, "u", unknown)
        found.client.rpush(QUEUE_KEY, "u")

        await found.signals.wake([uuid])

        assert "done" == (await found.world.rest(uuid)).answer
        assert 1 == len(found.world.executed())


async def test_runs_enqueued_while_redis_is_away_are_found_by_the_sweeper(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as found:
        script(found.world)
        found.client.shutdown(nosave=True)
        assert not await found.signals.wake([str(uuid4())])
        uuids = await queued(found.world, 3)

        assert ["done"] * 3 == [(await found.world.rest(uuid)).answer for uuid in uuids]
        assert 3 == len(found.world.executed())


async def test_runs_whose_wake_ups_were_lost_are_woken_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as found:
        script(found.world)
        uuids = await queued(found.world, 3)
        found.client.flushall()

        assert ["done"] * 3 == [(await found.world.rest(uuid)).answer for uuid in uuids]


async def test_a_message_holds_a_uuid_and_nothing_else(tmp_path: Path) -> None:
    async with fleet(tmp_path, 0) as found:
        script(found.world)
        [uuid] = await queued(found.world, 1)

        await found.signals.wake([uuid])

        keys = found.client.keys("*")
        assert {QUEUE_KEY.encode(), MESSAGES_KEY.encode()} == set(keys)
        [body] = found.client.hvals(MESSAGES_KEY)
        assert uuid.encode() in body and SECRET.encode() not in body and b"support" not in body
        await found.world.rest(uuid, drive=True)


@pytest.mark.parametrize("how", ["down", "lost"])
async def test_a_process_that_hears_nothing_finds_what_is_due_by_itself(tmp_path: Path, how: str) -> None:
    async with open_world(tmp_path, sweeps=True, sweep_s=0.05) as world:
        setattr(world.signals, how, True)

        assert "done" == (await world.queue()).answer
        world.script(reply("", call("refund_order", order=7)), reply("done"))
        shown = await world.queue()
        await world.decide(shown.uuid)
        assert "done" == (await world.rest(shown.uuid)).answer


async def test_a_run_whose_wake_ups_go_where_every_slot_is_taken_is_found_by_a_free_process(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, max_runs=1) as full, open_world(tmp_path, create=False, sweep_s=60) as free:
        full.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        free.signals.host = full.host
        [busy] = await queued(full, 1)
        await eventually(lambda: full.executed(busy), "the slot is taken")
        full.script(reply("done"), name="script.toml")
        [late] = await queued(full, 1)
        assert 1 == await full.sweep()  # the mark of this sweep keeps others from waking it for a minute

        assert 0 == await free.sweep()

        assert "done" == (await free.rest(late)).answer
        gate.touch()
        await full.rest(busy)
