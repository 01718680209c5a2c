"""What the machine below does to a worker: its clock is wrong, its disk is full, its event loop is held up."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import tomli_w

from codec.vocabulary import QuestionKind, RunStatus
from tests.support.crash_load import Load, people
from tests.support.engines import ENGINES, engine_url
from tests.support.processes import Fleet, Worker, fleet
from tests.support.shifted_worker import SHIFT
from tests.support.world import CATALOGUE, call, eventually, merged, reply

pytestmark = pytest.mark.crash

OFF_S: Final = 600.0


@pytest.mark.parametrize("database", ENGINES)
async def test_nothing_depends_on_the_clock_of_a_worker(tmp_path: Path, database: str) -> None:
    """One is ten minutes ahead and the other ten minutes behind; the database's clock decides."""
    async with engine_url(database, tmp_path) as url, fleet(tmp_path, 0, url=url, lease_s=3.0) as found:
        began = await found.world.store.now()
        async with asyncio.TaskGroup() as starting:
            for name, shift in (("ahead", OFF_S), ("behind", -OFF_S)):
                add = found.add(name, module="tests.support.shifted_worker", **{SHIFT: str(shift)})
                starting.create_task(add)
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=40)
        async with people(load):
            await load.enqueue(10)
            await load.ended(60)

        await load.check_undisturbed()
        # The scripted provider notes the host's time, so it shows that both clocks were wrong, and both were used.
        noted = {round((line["at"] - began) / OFF_S) for line in found.world.sent()}
        assert {1, -1} == noted
        ended = await found.world.store.now()
        for row in await load.rows():
            assert all(began <= entry.at <= ended for entry in await found.world.store.entries(row.uid))


# --- an event loop that is held up


async def hogging(found: Fleet, tool: str, gate: Path) -> str:
    """Begin a run whose tool holds up its worker's event loop until the gate is there."""
    (found.world.folder / "hog.toml").write_text(
        tomli_w.dumps({"reply": [reply("", call(tool, "h1", gate=str(gate))), reply("done")]})
    )
    document: dict[str, Any] = merged(
        CATALOGUE,
        provider__hog={"kind": "scripted", "script": "hog.toml", "trust_zone": "local"},
        configuration__hogging={"provider": "hog", "model": "m"},
    )
    await found.world.apply(document)
    uuid = (await found.world.runtime.enqueue(found.world.ask(configuration="hogging"))).uuid
    await found.signals.wake([uuid])
    return uuid


def executions(found: Fleet, uuid: str) -> int:
    return len(found.world.executed(uuid))


def told_where(worker: Worker) -> bool:
    """Whether a worker has said which tool it is that holds up its loop."""
    blocked = [line for line in worker.events() if line["event"] == "loop.blocked"]
    return any("world_tools.py" in place and "_hold_up" in place for line in blocked for place in line["at"])


async def test_a_loop_that_is_held_up_longer_than_its_lease_costs_its_runs_a_segment(tmp_path: Path) -> None:
    """All of them go on elsewhere; when the loop turns again, nothing that it still does counts."""
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 1, lease_s=1.5) as found:
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=400)
        async with people(load):
            await load.enqueue(4)
            uuid = await hogging(found, "hog", gate)
            await eventually(lambda: executions(found, uuid) == 1, "the loop is held up")
            await eventually(lambda: told_where(found.workers[0]), "the worker says where")
            await found.add("other")
            await eventually(lambda: executions(found, uuid) == 2, "the read is made again elsewhere")
            gate.touch()
            await load.ended(60)

        assert "done" == (await found.world.rest(uuid)).answer
        found.world.repeated |= {line["key"] for line in found.world.executed(uuid)}
        assert await load.check() > 0


async def test_a_write_that_holds_up_the_loop_is_asked_about_and_not_made_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 1, lease_s=1.5) as found:
        world = found.world
        uuid = await hogging(found, "hog_writing", gate)
        await world.rest(uuid)
        await world.decide(uuid)
        await found.signals.wake([uuid])
        await eventually(lambda: executions(found, uuid) == 1, "the loop is held up")
        other = await found.add("other")

        async def asked() -> bool:
            waiting = (await world.show(uuid)).waiting
            return waiting is not None and waiting.kind is QuestionKind.OUTCOME

        await eventually(asked, "a person is asked what became of the write")
        gate.touch()
        await eventually(lambda: "lease.lost" in found.workers[0].logged(), "the late result does not count")
        await world.settle(uuid, call="h1", happened="it was written")
        await found.signals.wake([uuid])

        shown = await world.rest(uuid)
        assert (RunStatus.COMPLETED, "done", 1) == (shown.status, shown.answer, executions(found, uuid))
        assert other.returncode is None


# --- a full disk


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits another process")
async def test_a_full_disk_stops_the_runs_and_loses_nothing(tmp_path: Path) -> None:
    """No file of the worker may grow, in the middle of the load; then there is room again, within a lease."""
    async with fleet(tmp_path, 1, lease_s=6.0) as found:
        [worker] = found.workers
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=100)
        async with people(load):
            await load.enqueue(12)
            await eventually(lambda: len(found.world.sent()) > 12, "the runs get on")
            _, most = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, ((tmp_path / "regate.db-wal").stat().st_size, most))
            await asyncio.sleep(0.5)  # what it had begun to write
            before = await load.progress()
            await asyncio.sleep(1.0)
            stood = await load.progress()
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (most, most))
            await load.ended(60)

        assert before == stood < await load.progress()
        assert 0 == await load.check()
