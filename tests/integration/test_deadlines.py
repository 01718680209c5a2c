"""A command that does not come back must not keep its run: the lease ends, and another segment goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from codec.vocabulary import QuestionKind
from tests.support.world import call, eventually, open_world, reply

pytestmark = pytest.mark.engines

LEASE_S = 2.0


async def test_a_tool_that_ignores_its_end_loses_the_run_and_a_person_is_asked(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, sweeps=True, lease_s=LEASE_S, sweep_s=0.1) as world:
        world.script(reply("", call("write_deaf", gate=str(gate))), reply("done"))
        uuid = (await world.queue()).uuid
        await world.decide(uuid)
        try:

            async def asked() -> bool:
                waiting = (await world.show(uuid)).waiting
                return waiting is not None and waiting.kind is QuestionKind.OUTCOME

            await eventually(asked, "a person is asked what became of the write")
        finally:
            gate.touch()

        waiting = (await world.show(uuid)).waiting
        assert waiting is not None
        assert [line["key"] for line in world.executed()] == [asked_about.key for asked_about in waiting.calls]
        assert {"run.overdue", "command.stuck"} <= {event for event, _ in world.logs}
        assert 0 == world.host.running
        await world.settle(uuid, happened="it was written")
        assert "done" == (await world.rest(uuid)).answer
        assert 1 == len(world.executed())


async def test_a_run_within_its_time_keeps_its_lease_over_many_heartbeats(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, sweeps=True, lease_s=LEASE_S, sweep_s=0.1) as world:
        world.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: len(world.executed()) == 1, "the read is in the air")
        before = (await world.row(uuid)).due_at
        assert before is not None

        async def renewed() -> bool:
            due_at = (await world.row(uuid)).due_at
            return due_at is not None and due_at >= before + 2 * LEASE_S

        await eventually(renewed, "its lease was renewed for two leases")
        gate.touch()

        assert "done" == (await world.rest(uuid)).answer
        assert (1, 1) == (len(world.executed()), (await world.row(uuid)).attempts)
