"""A worker is killed before and after every commit of a run; another goes on, and nothing is lost or done twice.

The run is the demonstration's: a forced confidential snippet, a write that a person approves, a second round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from codec.vocabulary import QuestionKind, RunStatus
from tests.support.processes import LEASE_S, environment, worker_process
from tests.support.world import World, call, eventually, open_world, reply
from worker.adapters.embedded_valkey import EmbeddedValkey

pytestmark = pytest.mark.crash

COMMITS: Final = 8
"""Upper bound of the commits of the run; a kill that never comes is noticed and left out."""
POINTS: Final = [f"{when}:{number}" for number in range(1, COMMITS + 1) for when in ("before", "after")]


async def answer_all(world: World, uuid: str) -> int:
    """Be the person: approve, and say of an unknown write what the ledger says; gives how often it was to be run."""
    to_run = 0
    while True:
        row = await world.row(uuid)
        if row.finished_at is not None:
            return to_run
        if row.question is not None and row.cause is None and row.status is not RunStatus.RUNNING:
            shown = await world.show(uuid)
            if shown.waiting is not None and shown.waiting.answered_by is None:
                to_run += await answer_one(world, uuid, shown.waiting.kind)
        await asyncio.sleep(0.02)


async def answer_one(world: World, uuid: str, kind: QuestionKind) -> int:
    if kind is not QuestionKind.OUTCOME:
        await world.decide(uuid)
        return 0
    if any(line["tool"] == "refund_order" for line in world.executed(uuid)):
        await world.settle(uuid, happened="Refunded order 7.")
        return 0
    await world.settle(uuid, run=True)
    return 1


async def test_a_run_survives_a_kill_at_every_commit(tmp_path: Path) -> None:
    limit = asyncio.Semaphore(3)

    async def one(point: str) -> bool:
        folder = tmp_path / point.replace(":", "-")
        folder.mkdir()
        async with limit:
            with EmbeddedValkey(folder) as server:
                return await killed_at(folder, server.url, point)

    killed = await asyncio.gather(*(one(point) for point in POINTS))

    assert sum(killed) >= 10, dict(zip(POINTS, killed, strict=True))


async def killed_at(folder: Path, broker: str, point: str) -> bool:
    """Kill one worker at this point and let another finish; gives whether it came to that."""
    async with open_world(folder, claims=False, migrated=True, lease_s=LEASE_S) as world:
        world.script(reply("", call("refund_order", order=7)), reply("", call("echo", "c2", text="x")), reply("done"))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        person = asyncio.create_task(answer_all(world, uuid))
        crashing = environment(folder, broker, CRASH_AT=point)
        async with worker_process(crashing, module="tests.support.crash_worker", name="crashing") as first:
            await eventually(
                lambda: person.done() or first.process.returncode is not None, "a kill or an end", seconds=60
            )
            crashed = first.process.returncode is not None
            if crashed:
                async with worker_process(environment(folder, broker), name="second"):
                    async with asyncio.timeout(60):
                        to_run = await person
            else:
                to_run = await person
        await check(world, uuid, point, crashes=int(crashed), to_run=to_run)
    return crashed


async def check(world: World, uuid: str, point: str, *, crashes: int, to_run: int) -> None:
    shown = await world.show(uuid)
    assert (RunStatus.COMPLETED, "done") == (shown.status, shown.answer), (point, shown)
    ledger = Counter((line["tool"], line["key"]) for line in world.executed(uuid))
    writes = [times for (tool, _), times in ledger.items() if tool == "refund_order"]
    assert 1 == len(writes) and writes[0] <= 1 + to_run, (point, ledger)
    assert 3 <= len(world.sent(uuid)) <= 3 + crashes, point
    rounds = Counter(line["round"] for line in world.sent(uuid))
    assert max(rounds.values()) <= 1 + crashes
    world.repeated |= {key for tool, key in ledger if tool == "echo"}
