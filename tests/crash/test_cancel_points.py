"""Whoever cancels dies on the way, or the worker does that has to close the run: it is cancelled, or it goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest

from codec.vocabulary import RunStatus
from tests.support.crash_points import POINT, TALLY, Strike, struck
from tests.support.crash_story import LEASE_S
from tests.support.processes import Fleet, fleet, start
from tests.support.world import call, eventually, reply

pytestmark = pytest.mark.crash

RUNNING: Final = ("cancel.before_commit", "cancel.after_commit")
WAITING: Final = ("close.before_commit", "close.after_commit")


def armed(found: Fleet, point: str, folder: Path) -> dict[str, str]:
    strike = Strike(point=point, number=1, signal=signal.SIGKILL)
    return {POINT: str(strike), TALLY: str(folder / "strike.tally")}


async def cancel(found: Fleet, uuid: str, name: str, **more: str) -> int:
    asking = await start(found.env | more, module="tests.support.crash_client", name=name, arguments=("cancel", uuid))
    return await asking.ended()


async def begun(found: Fleet, gate: Path) -> str:
    """Enqueue a run and see it running: its read waits for the gate."""
    found.world.script(reply("", call("read_at", gate=str(gate))), reply("done"))
    uuid = (await found.world.runtime.enqueue(found.world.ask())).uuid
    await found.signals.wake([uuid])
    await eventually(lambda: len(found.world.executed(uuid)) == 1, "the read is in the air", seconds=60)
    return uuid


async def ended(found: Fleet, uuid: str) -> RunStatus:
    async def final() -> bool:
        row = await found.world.row(uuid)
        return row.finished_at is not None and row.token is None

    await eventually(final, "the run has ended and is closed", seconds=60)
    return (await found.world.row(uuid)).status


@pytest.mark.parametrize("point", RUNNING)
async def test_who_cancels_a_running_run_dies(tmp_path: Path, point: str) -> None:
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 1, lease_s=LEASE_S) as found:
        uuid = await begun(found, gate)

        assert -signal.SIGKILL == await cancel(found, uuid, "first", **armed(found, point, tmp_path))

        gate.touch()
        wanted = RunStatus.COMPLETED if point == RUNNING[0] else RunStatus.CANCELLED
        assert wanted is await ended(found, uuid)
        # Nobody who asks again is told anything else.
        assert (wanted is RunStatus.CANCELLED) == (await cancel(found, uuid, "again") == 0)


@pytest.mark.parametrize("point", WAITING)
async def test_who_cancels_a_waiting_run_dies(tmp_path: Path, point: str) -> None:
    async with fleet(tmp_path, 1, lease_s=LEASE_S) as found:
        found.world.script(reply("", call("refund_order", order=7)), reply("done"))
        uuid = (await found.world.runtime.enqueue(found.world.ask())).uuid
        await found.signals.wake([uuid])
        await found.world.rest(uuid)

        assert -signal.SIGKILL == await cancel(found, uuid, "first", **armed(found, point, tmp_path))

        waits = (await found.world.row(uuid)).status is RunStatus.WAITING_FOR_APPROVAL
        assert waits == (point == WAITING[0])
        assert 0 == await cancel(found, uuid, "again")
        assert RunStatus.CANCELLED is await ended(found, uuid)
        assert [] == found.world.executed(uuid)


@pytest.mark.parametrize("point", WAITING)
async def test_who_closes_a_cancelled_run_of_a_dead_worker_dies(tmp_path: Path, point: str) -> None:
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 1, lease_s=LEASE_S) as found:
        uuid = await begun(found, gate)
        found.workers[0].signal(signal.SIGKILL)
        assert 0 == await cancel(found, uuid, "who cancels")

        closing = await found.add("closing", module="tests.support.crash_worker", **armed(found, point, tmp_path))
        assert -signal.SIGKILL == await closing.ended()
        assert struck(tmp_path / "strike.tally")
        await found.add("last")

        assert RunStatus.CANCELLED is await ended(found, uuid)
        assert "cancel_requested" == (await found.world.kinds(uuid))[-1]


async def test_a_worker_that_dies_while_it_closes_is_followed_by_a_sweeper(tmp_path: Path) -> None:
    """The run is cancelled under it; its closing step is the one that kills it."""
    gate = tmp_path / "gate"
    async with fleet(tmp_path, 0, lease_s=LEASE_S) as found:
        first = await found.add(
            "first", module="tests.support.crash_worker", **armed(found, "finish.before_commit", tmp_path)
        )
        uuid = await begun(found, gate)
        assert 0 == await cancel(found, uuid, "who cancels")
        gate.touch()
        assert -signal.SIGKILL == await first.ended()
        await found.add("second")

        assert RunStatus.CANCELLED is await ended(found, uuid)
        assert 1 == len(found.world.executed(uuid))
