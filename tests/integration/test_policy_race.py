"""Edits of the catalogue that race with running steps: no send and no call under a policy that was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from codec.catalogue import CatalogueSnapshot
from codec.vocabulary import RunStatus, TerminationReason
from tests.support.world import CATALOGUE, World, call, eventually, merged, open_world, reply
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.system import SystemClock
from worker.ports.records import Renewal
from worker.runtime.feed import PolicyFeed
from worker.runtime.parts import PERMIT_TTL_S

pytestmark = pytest.mark.engines

ROUNDS: Final = 150
TICK_S: Final = 0.002
"""The database's clock on SQLite counts milliseconds."""


def looping(world: World, rounds: int = ROUNDS, **more: Any) -> None:
    """Let the model call a tool in every round."""
    world.script(*(reply("", call("echo", f"c{n}", text="x"), **more) for n in range(rounds)), reply("done"))


async def check_order(world: World, uuid: str, edits: Sequence[tuple[int, float]]) -> None:
    """What was committed after an edit had returned stands under that edit's version, or a later one."""
    for row in await world.journal(uuid):
        newest = max((version for version, at in edits if at + TICK_S < row.at), default=0)
        assert row.policy >= newest, (row.seq, row.kind, row.policy, newest)


async def test_no_permit_of_an_older_policy_is_committed_or_performed_late(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"max_iterations": 200})
    async with open_world(tmp_path, document=document) as world:
        looping(world)
        asks = [world.ask(str(n), snippets=["incident"]) for n in range(12)]
        uuids = [(await world.runtime.enqueue(ask)).uuid for ask in asks]
        await eventually(lambda: len(world.sent()) > 60, "all runs are under way")

        edits: list[tuple[int, float]] = []
        for number in range(15):
            version = await world.change("snippet", "incident", text=f"Text {number}.")
            edits.append((version, await world.store.now()))
        version = await world.change("configuration", "support", provider="world")
        edits.append((version, await world.store.now()))
        refused_at = edits[-1][1]

        shown = [await world.rest(uuid) for uuid in uuids]
        assert {TerminationReason.CONTEXT_BLOCKED} == {run.termination_reason for run in shown}
        for uuid in uuids:
            await check_order(world, uuid, edits)
            assert "policy_replaced" in await world.kinds(uuid)
        assert {"house"} == {line["provider"] for line in world.sent()}
        assert max(line["at"] for line in world.sent()) <= refused_at + PERMIT_TTL_S


async def test_writers_of_the_catalogue_and_runs_both_get_on(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"max_iterations": 200})
    async with open_world(tmp_path, document=document) as world:
        looping(world, 20)
        uuids = [(await world.runtime.enqueue(world.ask(str(n), snippets=["incident"]))).uuid for n in range(5)]
        edits: list[tuple[int, float]] = []

        async def rested() -> bool:
            return all([(await world.row(uuid)).status is RunStatus.COMPLETED for uuid in uuids])

        while not await rested():
            declared = ("secret_adjacent", "internal_configuration")[len(edits) % 2]
            edits.append((await world.change("snippet", "incident", data_class=declared), await world.store.now()))

        for uuid in uuids:
            await check_order(world, uuid, edits)


async def test_facts_that_changed_under_a_run_are_recorded_and_others_are_not(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        gate = [tmp_path / f"gate{n}" for n in range(2)]
        world.script(*(reply("", call("read_at", f"c{n}", gate=str(gate[n]))) for n in range(2)), reply("done"))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(lambda: len(world.executed()) == 1, "the first call runs")
        unrelated = await world.change("snippet", "tone", data_class="source_code")
        gate[0].touch()
        await eventually(lambda: len(world.executed()) == 2, "the second call runs")
        assert "policy_replaced" not in await world.kinds(uuid)
        assert unrelated == (await world.journal(uuid))[-1].policy

        related = await world.change("snippet", "incident", data_class="editor_content")
        gate[1].touch()
        shown = await world.rest(uuid)

        assert "done" == shown.answer
        [replaced] = [row for row in await world.journal(uuid) if row.kind == "policy_replaced"]
        assert related == replaced.policy


async def test_a_provider_re_pointed_between_rounds_is_refused_in_the_run(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        gate = tmp_path / "gate"
        world.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(world.executed, "the call runs")
        await world.change("configuration", "support", provider="world")
        gate.touch()

        shown = await world.rest(uuid)

        assert (TerminationReason.CONTEXT_BLOCKED, 1) == (shown.termination_reason, len(world.sent()))
        [row] = await world.audit(uuid, "context_blocked")
        assert ('snippet "incident"', "world", "external_global", "local") == (
            row.source,
            row.provider,
            row.zone,
            row.actor,
        )


async def test_an_edit_between_composing_and_the_first_commit_composes_anew(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuids = [(await world.runtime.enqueue(world.ask(str(n), snippets=["incident"]))).uuid for n in range(20)]
        for claimed in await world.host.claim(20, uuids):
            world.host.take(claimed)

        for number in range(10):
            await world.change("snippet", "incident", text=f"New text {number}.")

        for uuid in uuids:
            await world.rest(uuid)
            [first, *_] = await world.journal(uuid)
            [line] = world.sent(uuid)
            texts = [m["content"] for m in line["messages"] if m["content"].startswith("Incident")]
            version = (await world.runtime.feed.current()).version
            expected = first.policy - (version - 10)  # the n-th edit gave this version
            assert [f"Incident:\nNew text {expected - 1}." if expected else "Incident:\nThe incident."] == texts


# --- permits that are too old


@dataclass
class LateClock(SystemClock):
    """A process's clock that says, so many times, that everything took three seconds longer."""

    late: int = 0

    def monotonic(self) -> float:
        """Give the time, late as long as there is lateness left."""
        return super().monotonic() + (3.0 if self.late > 0 else 0.0)


async def test_a_permit_that_is_too_old_is_not_performed_but_judged_again(tmp_path: Path) -> None:
    clock = LateClock(late=1)
    async with open_world(tmp_path, clock=clock, retry_s=()) as world:
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(lambda: _overdue(world, uuid, 3), "some permits expired")
        assert [] == world.sent()
        clock.late = 0

        shown = await world.rest(uuid)

        assert ("done", 1) == (shown.answer, len(world.sent()))
        metas = [msgspec.json.decode(row.meta) for row in await world.journal(uuid)]
        assert {"permit_expired"} == {meta["failure"] for meta in metas if "failure" in meta}


async def _overdue(world: World, uuid: str, times: int) -> bool:
    return (await world.kinds(uuid)).count("model_failed") >= times


async def test_a_process_that_is_always_too_late_fills_no_journal(tmp_path: Path) -> None:
    async with open_world(tmp_path, clock=LateClock(late=1), retry_s=()) as world:
        shown = await world.queue()

        assert TerminationReason.RETRIES_EXHAUSTED is shown.termination_reason
        assert (0, True) == (len(world.sent()), len(await world.journal(shown.uuid)) < 20)


async def test_a_write_that_is_too_old_is_released_again_and_happens_once(tmp_path: Path) -> None:
    clock = LateClock()
    async with open_world(tmp_path, clock=clock) as world:
        world.script(reply("", call("write", n=1)), reply("done"))
        uuid = (await world.queue()).uuid
        clock.late = 1
        await world.decide(uuid)
        await eventually(lambda: _failed_calls(world, uuid), "the call came too late")
        assert [] == world.executed()
        clock.late = 0

        shown = await world.rest(uuid)

        assert ("done", 1) == (shown.answer, len(world.executed()))


async def _failed_calls(world: World, uuid: str) -> bool:
    return "tool_failed" in await world.kinds(uuid)


# --- what a process remembers


class Overlapping(SqlCatalogue):
    """A catalogue whose first read comes back last."""

    held: asyncio.Event
    calls = 0

    async def snapshot(self, known: CatalogueSnapshot | None = None) -> CatalogueSnapshot:
        """Read at once, but give the first one back when told to."""
        self.calls += 1
        first = self.calls == 1
        found = await super().snapshot(known)
        if first:
            await self.held.wait()
        return found


async def test_of_two_reads_that_overlap_the_newer_is_remembered(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        catalogue = Overlapping(world.database, world.parts.sealer)
        catalogue.held = asyncio.Event()
        feed = PolicyFeed(catalogue, world.parts.toolbox, world.parts.sealer)
        older = asyncio.create_task(feed.current())
        await eventually(lambda: catalogue.calls == 1, "the first read is under way")
        await world.change("snippet", "tone", label="Newer")
        newer = await feed.current()

        catalogue.held.set()

        assert (await older).version < newer.version
        assert newer is feed.held


class LateRenewal(SqlRunStore):
    """A store whose heartbeat waits until it is told to ask, and is answered a while later."""

    asked: asyncio.Event
    may: asyncio.Event

    async def renew(self, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        """Renew when allowed to."""
        self.asked.set()
        await self.may.wait()
        return await super().renew(holds, lease_s)


async def test_a_late_heartbeat_does_not_end_the_segment_that_came_after(tmp_path: Path) -> None:
    LateRenewal.asked, LateRenewal.may = asyncio.Event(), asyncio.Event()
    gate = tmp_path / "gate"
    async with open_world(tmp_path, store=LateRenewal, lease_s=1.0) as world:
        world.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: len(world.executed()) == 1, "the call runs")
        async with asyncio.timeout(10):
            await LateRenewal.asked.wait()
        row = await world.row(uuid)
        task = world.host.task_of(row.uid)
        assert task is not None
        task.cancel()
        await eventually(task.done, "the segment is dead")
        world.database.shift_clock(2)
        world.host.wake_oldest()
        await eventually(lambda: len(world.executed()) == 2, "the next segment repeats the call")

        LateRenewal.may.set()
        gate.touch()
        shown = await world.rest(uuid)

        assert ("done", 2) == (shown.answer, shown.attempts)
        world.repeated |= {line["key"] for line in world.executed()}


@pytest.mark.parametrize("mode", ["observe", "enforce"])
async def test_the_switch_is_read_live(tmp_path: Path, mode: str) -> None:
    async with open_world(tmp_path, document=merged(CATALOGUE, configuration__support={"provider": "world"})) as world:
        await world.change("policy", "policy", data_class_enforcement=mode)

        shown = await world.queue(world.ask(snippets=["incident"]))

        assert (mode == "observe") is (shown.status is RunStatus.COMPLETED)
        assert [mode] == [row.mode for row in await world.audit(shown.uuid, "context_blocked")]
