"""Several processes on one database, at random killed, drained and replaced, while people answer and editors edit."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from codec.actor import LOCAL
from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, QuestionKind, RunStatus
from tests.support.world import World, call, eventually, open_world, reply
from worker.ports.records import RunFilter, RunRow
from worker.runtime.errors import ConflictError, UnavailableError

RUNS: Final = 16
HOSTS: Final = 3


class Chaos:
    """The worlds, and what was said in them."""

    def __init__(self, seed: int, folder: Path, stack: AsyncExitStack) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.stack = stack
        self.hosts: list[World] = []
        self.told_to_run: Counter[str] = Counter()

    async def open(self, *, create: bool = False) -> World:
        """Open one more process."""
        opened = open_world(self.folder, create=create, sweeps=True, checks=False, lease_s=1.0, sweep_s=0.1)
        world = await self.stack.enter_async_context(opened)
        self.hosts.append(world)
        return world

    async def disturb(self) -> None:
        """Do harm: kill segments, drain a process and open another, edit, cancel."""
        for _ in range(25):
            before, step = await self.progress(), self.random.randint(1, 12)
            await eventually(partial(self.moved, before + step), "the runs get on")
            await self.random.choice([self.kill, self.kill, self.replace, self.edit])()

    async def progress(self) -> int:
        """Give how many entries all journals have."""
        return sum(row.seq for row in await self.hosts[-1].store.runs(RunFilter()))

    async def moved(self, entries: int) -> bool:
        rows = await self.hosts[-1].store.runs(RunFilter())
        return sum(row.seq for row in rows) >= entries or all(row.status in FINAL_STATUSES for row in rows)

    async def kill(self) -> None:
        world = self.random.choice(self.hosts)
        running = [row for row in await world.store.runs(RunFilter()) if row.status is RunStatus.RUNNING]
        for row in running[: self.random.randint(1, 3)]:
            task = world.host.task_of(row.uid)
            if task is not None:
                task.cancel()

    async def replace(self) -> None:
        world = self.hosts.pop(0)
        draining = asyncio.create_task(world.host.drain(self.random.choice([0.0, 5.0])))
        await self.open()
        await draining

    async def edit(self) -> None:
        fields: dict[str, Any] = self.random.choice(
            [
                {"text": f"Text {self.random.random()}."},
                {"data_class": "internal_configuration"},
                {"data_class": "secret_adjacent"},
                {"active": False},
                {"active": True},
            ]
        )
        await self.hosts[0].change("snippet", "incident", **fields)

    async def answer_all(self) -> None:
        """Be everybody who is asked, until all runs have ended."""
        while True:
            world = self.hosts[-1]
            rows = await world.store.runs(RunFilter())
            if len(rows) == RUNS and all(row.status in FINAL_STATUSES for row in rows):
                return
            for row in rows:
                if row.status in WAITING_STATUSES and row.cause is None:
                    await self.answer(world, row)
            await asyncio.sleep(0.02)

    async def answer(self, world: World, row: RunRow) -> None:
        with suppress(ConflictError, UnavailableError):  # it went on, or was answered, meanwhile
            await self.say(world, row)

    async def say(self, world: World, row: RunRow) -> None:
        if row.question_kind is not QuestionKind.OUTCOME:
            await world.answer(row.uuid)
            return
        state = await world.state(row.uuid)
        key = next(c.key for c in state.calls if state.question is not None and c.id in state.question.calls)
        done = any(line["key"] == key for line in world.executed())
        identity = next(c.id for c in state.calls if c.key == key)
        if done:
            await world.settle(row.uuid, call=identity, happened="done")
        else:
            await world.settle(row.uuid, call=identity, run=True)
            self.told_to_run[key] += 1


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_or_done_twice_whoever_dies(tmp_path: Path, seed: int) -> None:
    async with AsyncExitStack() as stack:
        chaos = Chaos(seed, tmp_path, stack)
        first = await chaos.open(create=True)
        first.script(
            reply("", call("refund_order", order=7), call("echo", "e", text="x"), delay_ms=20),
            reply("", call("needs_person", "c2", topic="x"), call("write", "c3", n=1), delay_ms=20),
            reply("", call("set_label", "c4", order=1, label="x"), delay_ms=20),
            reply("done", delay_ms=20),
        )
        for _ in range(HOSTS - 1):
            await chaos.open()
        uuids = [(await first.runtime.enqueue(first.ask(str(n), snippets=["incident"]))).uuid for n in range(RUNS)]
        people = asyncio.create_task(chaos.answer_all())
        await chaos.disturb()
        await eventually(people.done, "all runs end", seconds=40)

        world = chaos.hosts[-1]
        assert {"done"} == {(await world.runtime.show(LOCAL, uuid)).answer for uuid in uuids}
        rows = [await world.row(uuid) for uuid in uuids]
        assert RUNS < sum(row.segment - 4 for row in rows)  # it was more than every answer's own segment
        check_ledger(world, chaos)
        world.repeated |= {line["key"] for line in world.executed()}
        await world.check()


def check_ledger(world: World, chaos: Chaos) -> None:
    """Writes that may happen once happened once, or once more for each time that a person said so."""
    ledger = Counter((line["tool"], line["key"]) for line in world.executed())
    once = {key: times for (tool, key), times in ledger.items() if tool in ("refund_order", "write")}
    assert 2 * RUNS == len(once)
    assert {} == {key: times for key, times in once.items() if times > 1 + chaos.told_to_run[key]}
