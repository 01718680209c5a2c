"""Runs from their start to their end and what can come in between: cancels, drains, damage, gone records."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from msgspec.structs import replace
from rich.console import Console

from codec.actor import LOCAL
from codec.documents import encode_document
from codec.request import RunAugmentation
from codec.vocabulary import FINAL_STATUSES, BlockedReason, QuestionKind, RunStatus, TerminationReason, Verdict
from codec.wire import Shown
from tests.support.world import CATALOGUE, World, call, eventually, merged, open_world, reply
from worker.adapters.sql.store import SqlRunStore
from worker.cli.pages.run import question_page
from worker.ports.records import Append, AuditRow, Claimed, Commit, EntryRow, Renewal, RunFilter
from worker.ports.runs import StoreError
from worker.ports.toolbox import ToolCallInfo
from worker.runtime.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from worker.runtime.journalling import entry_link

pytestmark = pytest.mark.engines

REFUND: Final = call("refund_order", order=7)


async def die(world: World, uuid: str, *, shift: float | None = 31) -> None:
    """End a run's segment as a crash would: nothing is written, the lease is left to end."""
    task = world.host.task_of((await world.row(uuid)).uid)
    assert task is not None
    task.cancel()
    await eventually(task.done, "the segment is dead")
    if shift is not None:
        world.database.shift_clock(shift)


async def recovered(world: World, uuid: str) -> Shown:
    """Let this process find the run and see it to its rest."""
    world.host.wake_oldest()
    return await world.rest(uuid)


async def begun(world: World, *calls: dict[str, Any], text: str = "done", **changes: Any) -> str:
    """Enqueue a run whose first answer makes these calls."""
    world.script(reply("", *calls) if calls else reply(text), reply(text))
    return (await world.runtime.enqueue(world.ask(**changes))).uuid


async def waiting(world: World, *calls: dict[str, Any], **changes: Any) -> str:
    """Give a run that waits for a person."""
    uuid = await begun(world, *(calls or (REFUND,)), **changes)
    shown = await world.rest(uuid)
    assert shown.waiting is not None
    return uuid


# --- cancelling


async def test_a_queued_run_is_cancelled_and_never_starts(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuid = await begun(world)

        await world.runtime.cancel(LOCAL, uuid, via="test")

        shown = await world.show(uuid)
        assert (RunStatus.CANCELLED, TerminationReason.CANCELLED) == (shown.status, shown.termination_reason)
        assert ["cancel_requested"] == await world.kinds(uuid)
        assert [] == await world.host.claim(5) and [] == world.sent()


@pytest.mark.parametrize("asked", [REFUND, call("needs_person", topic="x")], ids=["approval", "input"])
async def test_a_waiting_run_is_cancelled_and_its_answer_comes_too_late(tmp_path: Path, asked: dict[str, Any]) -> None:
    async with open_world(tmp_path) as world:
        uuid = await waiting(world, asked)
        question = await world.question(uuid)

        await world.runtime.cancel(LOCAL, uuid, via="test")
        await world.runtime.cancel(LOCAL, uuid, via="test")

        assert RunStatus.CANCELLED is (await world.show(uuid)).status
        with pytest.raises(ConflictError, match="does not wait"):
            await world.decide(uuid, question=question)
        assert [] == world.executed()
        assert 1 == len(await world.audit(uuid, "run_cancelled"))


async def test_a_blocked_run_is_cancelled(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await waiting(world, snippets=["incident"])
        await world.change("configuration", "support", provider="world")
        await world.decide(uuid)
        await world.rest(uuid)

        await world.runtime.cancel(LOCAL, uuid, via="test")

        shown = await world.show(uuid)
        assert (RunStatus.CANCELLED, None, None) == (shown.status, shown.blocked, shown.waiting)


async def test_a_parked_run_is_cancelled(tmp_path: Path) -> None:
    async with open_world(tmp_path, retry_s=(60.0,)) as world:
        world.script(reply("done", fail={"status": 503, "times": 9}))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: _status_is(world, uuid, RunStatus.QUEUED, cause="retry"), "the run is parked")

        await world.runtime.cancel(LOCAL, uuid, via="test")

        assert RunStatus.CANCELLED is (await world.show(uuid)).status


async def _status_is(world: World, uuid: str, status: RunStatus, *, cause: str | None = None) -> bool:
    row = await world.row(uuid)
    return row.status is status and row.cause == cause


async def test_a_running_call_finishes_before_its_cancelled_run_is_closed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path) as world:
        uuid = await waiting(world, call("write_once_at", gate=str(gate)))
        await world.decide(uuid)
        await eventually(lambda: world.executed(uuid), "the tool runs")

        await world.runtime.cancel(LOCAL, uuid, via="test")
        assert RunStatus.CANCELLED is (await world.row(uuid)).status
        gate.touch()

        await eventually(lambda: _let_go(world, uuid), "the segment closes the run")
        assert ["cancel_requested", "tool_returned"] == (await world.kinds(uuid))[-2:]
        assert 1 == len(world.executed()) == len(world.sent())


async def _let_go(world: World, uuid: str) -> bool:
    return (await world.row(uuid)).token is None


async def test_a_send_in_flight_is_stopped_by_a_cancel(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("late", delay_ms=60_000))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(world.sent, "the send is out")

        await world.runtime.cancel(LOCAL, uuid, via="test")

        await eventually(lambda: _let_go(world, uuid), "the segment closes the run")
        assert ["run_started", "cancel_requested"] == await world.kinds(uuid)
        assert {"possible"} == {row["state"] for row in await world.exposures(uuid)}


async def test_what_a_late_reply_used_is_counted_and_nothing_else_of_it(tmp_path: Path) -> None:
    """Cancelled by another process: this one hears of it when it commits the reply, which was paid for."""
    async with open_world(tmp_path) as world:
        usage = {"input_tokens": 60, "output_tokens": 10}
        world.script(reply("", call("write", n=1), usage=usage, delay_ms=400))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(world.sent, "the send is out")
        row = await world.row(uuid)

        assert await world.store.cancel_running(
            row, AuditRow(decision="run_cancelled", actor="ada", via="test", run=uuid)
        )

        await eventually(lambda: _let_go(world, uuid), "the segment closes the run")
        row = await world.row(uuid)
        assert (RunStatus.CANCELLED, 60, 10, 0) == (row.status, row.input_tokens, row.output_tokens, row.rounds)
        assert ["run_started", "cancel_requested", "model_replied"] == await world.kinds(uuid)
        assert {"answered"} == {exposed["state"] for exposed in await world.exposures(uuid)}


async def test_a_cancelled_run_of_a_dead_worker_is_closed_by_the_sweeper(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        gate = tmp_path / "gate"
        uuid = await begun(world, call("read_at", gate=str(gate)))
        await eventually(lambda: world.executed(uuid), "the tool runs")
        await die(world, uuid, shift=None)

        await world.runtime.cancel(LOCAL, uuid, via="test")
        await world.sweep()
        assert (await world.row(uuid)).token is not None  # the lease is not over: its holder may still act
        world.database.shift_clock(31)
        await world.sweep()

        assert (await world.row(uuid)).token is None
        assert "cancel_requested" == (await world.kinds(uuid))[-1]


async def test_one_cancelled_run_that_cannot_be_closed_does_not_keep_others_open(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuids = [await begun(world, call("read_at", gate=str(tmp_path / "gate"))) for _ in range(2)]
        await eventually(lambda: len(world.executed()) == 2, "both run")
        for uuid in uuids:
            await die(world, uuid, shift=None)
            await world.runtime.cancel(LOCAL, uuid, via="test")
        row = await world.row(uuids[0])
        await world.alter(
            "INSERT INTO journal SELECT run_uid, seq + 1, kind, at, segment, token, policy_version, prev, meta, payload"
            " FROM journal WHERE run_uid = :uid AND seq = :seq",
            uid=row.uid,
            seq=row.seq,
        )
        world.damaged.add(uuids[0])
        world.database.shift_clock(31)

        await world.sweep()

        assert (await world.row(uuids[1])).token is None


async def test_an_ended_run_cannot_be_cancelled(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        shown = await world.run()

        with pytest.raises(ConflictError, match="ended"):
            await world.runtime.cancel(LOCAL, shown.uuid, via="test")


# --- requeueing


async def test_a_requeued_run_keeps_the_key_of_an_open_call(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path) as world:
        uuid = await waiting(world, call("write_once_at", gate=str(gate)))
        await world.decide(uuid)
        await eventually(lambda: world.executed(uuid), "the tool runs")
        await die(world, uuid)
        asked = await recovered(world, uuid)
        assert asked.waiting is not None and "outcome" == asked.waiting.kind
        await world.settle(uuid)  # neither happened nor to be run: stop
        stopped = await world.rest(uuid)
        assert TerminationReason.OUTCOME_UNKNOWN is stopped.termination_reason

        again = (await world.runtime.requeue(LOCAL, uuid, via="test")).uuid
        await world.rest(again)
        await world.settle(again, run=True)
        gate.touch()
        shown = await world.rest(again)

        assert ("done", RunStatus.COMPLETED) == (shown.answer, shown.status)
        assert shown.lineage is not None
        assert (uuid, (await world.row(uuid)).seq) == (shown.lineage.from_, shown.lineage.at)
        keys = {line["key"] for line in world.executed()}
        assert 1 == len(keys)
        world.repeated |= keys


async def test_only_failed_runs_are_requeued(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        done = await world.run()
        asked = await waiting(world)

        for uuid in (done.uuid, asked):
            with pytest.raises(ConflictError):
                await world.runtime.requeue(LOCAL, uuid, via="test")


async def test_a_run_that_failed_unread_is_queued_anew_once_it_can_be_read(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuid = await begun(world, snippets=["incident"])
        row = await world.row(uuid)
        [kept] = await world.select("SELECT payload FROM doc WHERE run_uid = :uid", uid=row.uid)
        await world.alter("UPDATE doc SET payload = x'00' WHERE run_uid = :uid", uid=row.uid)
        failed = await world.rest(uuid, drive=True)
        assert TerminationReason.CORRUPT is failed.termination_reason
        with pytest.raises(UnavailableError):
            await world.runtime.requeue(LOCAL, uuid, via="test")

        await world.alter("UPDATE doc SET payload = :kept WHERE run_uid = :uid", uid=row.uid, kept=kept["payload"])
        again = await world.runtime.requeue(LOCAL, uuid, via="test")
        shown = await world.rest(again.uuid, drive=True)

        assert ("done", (await world.uid("snippet", "incident"),)) == (shown.answer, shown.forced.snippets)
        assert "The incident." in world.sent(again.uuid)[0]["messages"][1]["content"]


# --- draining


async def test_an_answer_that_meets_a_drain_is_left_for_the_next_worker(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False, checks=False) as first:
        first.script(reply("", REFUND), reply("done"))
        uuid = (await first.run()).uuid
        await first.decide(uuid)
        attempts = (await first.row(uuid)).attempts
        [claimed] = await first.host.claim(1, [uuid])
        first.host.take(claimed)
        await first.host.drain(5)

        row = await first.row(uuid)
        assert (RunStatus.WAITING_FOR_APPROVAL, "answer", attempts) == (row.status, row.cause, row.attempts)
        assert [] == first.executed()

    async with open_world(tmp_path, create=False) as second:
        shown = await recovered(second, uuid)

        assert ("done", 1) == (shown.answer, len(second.executed()))
        assert "outcome" not in {e.get("kind") for e in await second.runtime.events(LOCAL, uuid)}


async def test_a_drained_worker_finishes_what_is_in_the_air_and_loses_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, checks=False) as first:
        uuids = [await begun(first, call("read_at", gate=str(gate)), prompt=str(n)) for n in range(5)]
        await eventually(lambda: len(first.executed()) == 5, "all run")
        draining = asyncio.create_task(first.host.drain(10))
        late = await begun(first, call("read_at", gate=str(gate)), prompt="late")
        gate.touch()
        await draining

        rows = [await first.row(uuid) for uuid in (*uuids, late)]
        assert {(RunStatus.QUEUED, 0, None)} == {(r.status, r.attempts, r.token) for r in rows}

    async with open_world(tmp_path, create=False) as second:
        for uuid in (*uuids, late):
            assert "done" == (await recovered(second, uuid)).answer
        assert 6 == len(second.executed())


async def test_what_is_claimed_while_a_worker_drains_is_given_back(tmp_path: Path) -> None:
    async with open_world(tmp_path, checks=False) as first:
        uuids = [await begun(first, prompt=str(n)) for n in range(40)]
        await first.host.drain(10)

        rows = [await first.row(uuid) for uuid in uuids]
        assert {None} == {row.token for row in rows}
        assert all(row.attempts == 0 for row in rows if row.status is RunStatus.QUEUED)

    async with open_world(tmp_path, create=False) as second:
        for uuid in uuids:
            assert "done" == (await recovered(second, uuid)).answer


class LateClaim(SqlRunStore):
    """A store whose claims come back only when they may."""

    may: asyncio.Event

    async def claim(self, limit: int, **terms: Any) -> list[Claimed]:
        """Claim at once, and tell later."""
        found = await super().claim(limit, **terms)
        await self.may.wait()
        return found


async def test_a_claim_that_comes_back_during_a_drain_was_no_attempt(tmp_path: Path) -> None:
    LateClaim.may = asyncio.Event()
    async with open_world(tmp_path, store=LateClaim, checks=False) as first:
        uuid = await begun(first)
        await eventually(lambda: _status_is(first, uuid, RunStatus.RUNNING, cause="start"), "the run is claimed")
        draining = asyncio.create_task(first.host.drain(10))
        await eventually(lambda: first.host.draining, "the process drains")
        LateClaim.may.set()
        await draining

        row = await first.row(uuid)
        assert (RunStatus.QUEUED, None, 0, 0) == (row.status, row.token, row.attempts, row.seq)

    async with open_world(tmp_path, create=False) as second:
        assert "done" == (await recovered(second, uuid)).answer


async def test_a_run_started_while_its_process_drains_is_left_to_others(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False, checks=False) as first:
        await first.host.drain(1)
        shown = await first.run()
        assert (RunStatus.QUEUED, []) == (shown.status, first.sent())

    async with open_world(tmp_path, create=False) as second:
        assert "done" == (await recovered(second, shown.uuid)).answer


class CancelledJustBefore(SqlRunStore):
    """Somebody else cancels the run just before a step is committed."""

    armed: ClassVar[bool]

    async def commit(self, step: Append) -> Commit:
        """See the port."""
        if self.armed:
            type(self).armed = False
            found = await self.runs(RunFilter())
            assert await self.cancel_running(found[0], AuditRow(decision="run_cancelled", actor="ada", via="test"))
        return await super().commit(step)


async def test_a_late_result_that_meets_a_cancel_leaves_the_run_to_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the token from the cancelled run and close nothing, and nobody would ever close it."""
    CancelledJustBefore.armed = False
    async with open_world(tmp_path, store=CancelledJustBefore) as world:
        gates = {"c1": asyncio.Event(), "c2": asyncio.Event()}
        asked: list[str] = []

        async def preview(_name: str, _arguments: str, info: ToolCallInfo) -> tuple[tuple[str, ...], bool]:
            asked.append(info.call_id)
            await gates[info.call_id].wait()
            return ("would",), False

        monkeypatch.setattr(world.parts.toolbox, "preview", preview)
        calls = [call("refund_order", name, order=7) for name in gates]
        world.script(reply("", *calls), reply("done", delay_ms=60_000))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: 2 == len(asked), "both are previewed")
        await world.apply(CATALOGUE | {"tool": [{"name": "refund_order", "enabled": False}]})
        gates["c1"].set()
        await eventually(lambda: 2 == len(world.sent()), "the run goes on without them")

        CancelledJustBefore.armed = True
        gates["c2"].set()

        await eventually(lambda: _let_go(world, uuid), "the segment closes the run")
        assert RunStatus.CANCELLED is (await world.show(uuid)).status
        assert "cancel_requested" in await world.kinds(uuid)


# --- damage


DAMAGE: Final = {
    "state": "UPDATE doc SET payload = x'00ff' WHERE run_uid = :uid AND kind = 'state'",
    "answer": "UPDATE inbox SET payload = x'00ff' WHERE run_uid = :uid",
    "key": "UPDATE run SET wrapped_key = x'00ff' WHERE uid = :uid",
    "head": "UPDATE run SET head = x'00ff' WHERE uid = :uid",
}
KEPT: Final = {
    "state": "SELECT payload AS kept FROM doc WHERE run_uid = :uid AND kind = 'state'",
    "answer": "SELECT payload AS kept FROM inbox WHERE run_uid = :uid",
    "key": "SELECT wrapped_key AS kept FROM run WHERE uid = :uid",
    "head": "SELECT head AS kept FROM run WHERE uid = :uid",
}


@pytest.mark.parametrize("what", ["state", "answer", "key"])
async def test_damage_of_an_answered_run_is_shown_and_left_in_place(tmp_path: Path, what: str) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuid = await waiting_here(world)
        await world.decide(uuid)
        uid = (await world.row(uuid)).uid
        [kept] = await world.select(KEPT[what], uid=uid)
        await world.alter(DAMAGE[what], uid=uid)
        entries = len(await world.journal(uuid))

        shown = await world.rest(uuid, drive=True)

        assert shown.blocked is not None and BlockedReason.CORRUPT is shown.blocked.reason
        assert RunStatus.WAITING_FOR_APPROVAL is shown.status
        assert (entries, []) == (len(await world.journal(uuid)), world.executed())
        await world.alter(DAMAGE[what].replace("x'00ff'", ":kept"), uid=uid, kept=kept["kept"])
        await world.runtime.resume(LOCAL, uuid, via="test")
        assert "done" == (await world.rest(uuid, drive=True)).answer


async def waiting_here(world: World, **changes: Any) -> str:
    """Give a run that waits for an approval, driven synchronously."""
    world.script(reply("", REFUND), reply("done"))
    return (await world.run(world.ask(**changes))).uuid


@pytest.mark.parametrize("what", ["state", "key"])
async def test_a_damaged_waiting_run_takes_no_answer_but_a_cancel(tmp_path: Path, what: str) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuid = await waiting_here(world)
        question = await world.question(uuid)
        await world.alter(DAMAGE[what], uid=(await world.row(uuid)).uid)
        world.damaged.add(uuid)

        with pytest.raises(UnavailableError):
            await world.decide(uuid, question=question)

        shown = await world.show(uuid)
        assert shown.blocked is not None and BlockedReason.CORRUPT is shown.blocked.reason
        assert 1 == len(await world.runtime.runs(LOCAL, RunFilter()))
        await world.runtime.cancel(LOCAL, uuid, via="test")
        assert RunStatus.CANCELLED is (await world.show(uuid)).status


@pytest.mark.parametrize("column", ["payload", "meta", "kind", "prev"])
async def test_a_damaged_journal_ends_a_working_run_and_replay_says_where(tmp_path: Path, column: str) -> None:
    async with open_world(tmp_path) as world:
        uuid = await begun(world, call("read_at", gate=str(tmp_path / "gate")))
        await eventually(lambda: world.executed(uuid), "the tool runs")
        await die(world, uuid)
        value = {"payload": "x'00'", "prev": "x'00'", "meta": "'{'", "kind": "'expired'"}[column]
        await world.alter(
            f"UPDATE journal SET {column} = {value} WHERE run_uid = :uid AND seq = 2",
            uid=(await world.row(uuid)).uid,
        )
        world.damaged.add(uuid)

        shown = await recovered(world, uuid)

        assert (RunStatus.FAILED, TerminationReason.CORRUPT) == (shown.status, shown.termination_reason)
        report = await world.runtime.replay(LOCAL, uuid)
        assert report.divergence is not None
        assert ("damaged", column == "prev") == (report.divergence.cause, report.divergence.sequence == 1)
        assert report.divergence.sequence in (1, 2)
        assert 3 == len(await world.runtime.events(LOCAL, uuid))
        assert 1 == len(world.executed())


class Moving(SqlRunStore):
    """A store that lets something happen before it reads a journal."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def entries(self, run_uid: int, after: int = 0) -> list[EntryRow]:
        """Let it happen once, then read."""
        happens, Moving.meanwhile = Moving.meanwhile, None
        if happens is not None:
            await happens()
        return await super().entries(run_uid, after)


async def test_a_run_that_moves_while_it_is_replayed_is_not_called_damaged(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, store=Moving) as world:
        uuid = await begun(world, call("read_at", gate=str(gate)))
        await eventually(lambda: world.executed(uuid), "the tool runs")

        async def go_on() -> None:
            gate.touch()
            await world.rest(uuid)

        Moving.meanwhile = go_on
        report = await world.runtime.replay(LOCAL, uuid)

        assert (None, 4) == (report.divergence, report.entries)


async def test_a_missing_entry_is_found_at_its_sequence(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        shown = await world.queue()
        uid = (await world.row(shown.uuid)).uid
        await world.alter("DELETE FROM journal WHERE run_uid = :uid AND seq = 2", uid=uid)
        world.damaged.add(shown.uuid)

        report = await world.runtime.replay(LOCAL, shown.uuid)

        assert report.divergence is not None
        assert ("missing", 2) == (report.divergence.cause, report.divergence.sequence)


async def test_a_run_that_cannot_be_opened_harms_no_other(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        world.script(reply("done"))
        uuids = [(await world.runtime.enqueue(world.ask(prompt=str(n)))).uuid for n in range(4)]
        for uuid, damage in zip(uuids, ("key", "head"), strict=False):
            await world.alter(DAMAGE[damage], uid=(await world.row(uuid)).uid)
        world.damaged |= set(uuids[:2])
        await world.host.start(claims=True)

        await world.sweep()

        assert ["done"] * 2 == [(await world.rest(uuid)).answer for uuid in uuids[2:]]
        assert RunStatus.FAILED is (await world.rest(uuids[0])).status
        assert 4 == len(await world.runtime.runs(LOCAL, RunFilter()))


@pytest.mark.parametrize(
    ("column", "value", "reason"), [("key_id", "'k-other'", "key"), ("doc_version", "99", "version")]
)
async def test_what_this_process_cannot_open_is_claimed_by_nobody_and_said(
    tmp_path: Path, column: str, value: str, reason: str
) -> None:
    async with open_world(tmp_path) as world:
        asked = await waiting(world)
        await world.alter(f"UPDATE run SET {column} = {value}")
        world.damaged.add(asked)
        world.signals.lost = True
        queued = await begun(world)
        await world.alter(f"UPDATE run SET {column} = {value}")
        world.damaged.add(queued)
        world.signals.lost = False

        await world.sweep()

        assert [] == await world.host.claim(9)
        for uuid in (asked, queued):
            blocked = (await world.show(uuid)).blocked
            assert blocked is not None and reason == blocked.reason
        with pytest.raises(UnavailableError) as refused:
            await world.decide(asked)
        assert reason == refused.value.code
        await world.runtime.cancel(LOCAL, asked, via="test")
        await world.runtime.cancel(LOCAL, queued, via="test")
        assert 2 == len(await world.runtime.runs(LOCAL, RunFilter(statuses=(RunStatus.CANCELLED,))))


class SlowHeartbeats(SqlRunStore):
    """Renews when it is let."""

    let: ClassVar[asyncio.Event]

    async def renew(self, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        """See the port."""
        await self.let.wait()
        return await super().renew(holds, lease_s)


async def test_a_run_that_was_left_is_not_kept_by_a_heartbeat_under_way(tmp_path: Path) -> None:
    """As when the database comes back: the heartbeat that waited for it would add a whole lease to the recovery."""
    SlowHeartbeats.let = asyncio.Event()
    async with open_world(tmp_path, store=SlowHeartbeats) as world:
        world.script(reply("done", delay_ms=60_000))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: len(world.sent()) == 1, "the send is out")
        renewing = asyncio.create_task(world.host._renew())
        await asyncio.sleep(0.01)
        await die(world, uuid, shift=None)
        world.script(reply("done"))

        SlowHeartbeats.let.set()
        await renewing

        assert "done" == (await recovered(world, uuid)).answer


async def test_whoever_was_held_up_after_a_claim_does_not_call_the_run_damaged(tmp_path: Path) -> None:
    """What he reads was written by another one since, and does not fit the row that he has in hand."""
    async with open_world(tmp_path, claims=False) as world:
        uuid = await begun(world)
        [late] = await world.host.claim(1)
        world.database.shift_clock(31)
        assert "done" == (await world.rest(uuid, drive=True)).answer

        await world.host.take(late)

        told = [event for event, fields in world.logs if fields.get("run") == uuid]
        assert ["lease.lost"] == told
        assert RunStatus.COMPLETED is (await world.row(uuid)).status


async def test_a_question_about_an_outcome_says_which_call_it_means(tmp_path: Path) -> None:
    """Of several calls of a turn, some of which are done."""
    calls = [call("echo", "c1", text="x"), call("write", "c2", n=1), call("explode_writing", "c3", word="x")]
    async with open_world(tmp_path) as world:
        uuid = await waiting(world, *calls)
        await world.decide(uuid)

        asked = (await world.rest(uuid)).waiting

        assert asked is not None and QuestionKind.OUTCOME is asked.kind
        assert ["c3"] == [found.id for found in asked.calls if found.asked]
        page = Console(file=io.StringIO(), width=200)
        page.print(question_page(asked, uuid))
        told = page.file.getvalue()  # type: ignore[attr-defined]
        assert "--call c3 " in told and "no decision" not in told
        assert ["outcome    unknown"] == [line.strip() for line in told.splitlines() if "outcome " in line]


# --- limits and failures


async def test_a_run_that_kills_its_process_is_given_up(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("done", delay_ms=60_000))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        for crash in range(1, 8):
            await eventually(partial(_sent_or_ended, world, uuid, crash), "it is sent again")
            if await _ended(world, uuid):
                break
            await die(world, uuid, shift=31.0 * crash)
            world.host.wake_oldest()

        shown = await world.rest(uuid)

        assert TerminationReason.RETRIES_EXHAUSTED is shown.termination_reason
        assert 6 == len(world.sent())  # the first, and five recoveries that came to nothing


async def test_a_run_that_kills_its_process_ends_alone(tmp_path: Path) -> None:
    """Whatever ran beside it each time, and never came further, is driven apart from it in the end."""
    async with open_world(tmp_path, max_runs=16) as world:
        world.script(reply("done", delay_ms=400))
        world.script(reply("", call("read_at", gate=str(tmp_path / "never"))), name="poison.toml")
        await world.change("provider", "eu", script=str(tmp_path / "poison.toml"))
        await world.change("configuration", "spare", provider="eu")
        poison = (await world.runtime.enqueue(world.ask(configuration="spare"))).uuid
        others = [(await world.runtime.enqueue(world.ask())).uuid for _ in range(9)]
        crashes, seconds = 0, 0.0
        while not await _all_ended(world, [poison, *others]):
            if len(world.executed(poison)) > crashes:
                crashes += 1
                await asyncio.gather(*(die(world, uuid, shift=None) for uuid in _driven(world)))
                seconds += 31
            elif not world.host.running:
                seconds += 6  # all that is left was put off
            world.database.shift_clock(seconds)
            world.host.wake_oldest()
            await asyncio.sleep(0.01)

        assert TerminationReason.RETRIES_EXHAUSTED is (await world.show(poison)).termination_reason
        assert ["done"] * 9 == [(await world.show(uuid)).answer for uuid in others]
        assert 6 == crashes
        assert {poison} < {fields["run"] for event, fields in world.logs if event == "run.suspected"}
        world.repeated |= {line["key"] for line in world.executed()}


def _driven(world: World) -> list[str]:
    return [hold.row.uuid for hold, _ in world.host._held.values()]


async def _all_ended(world: World, uuids: list[str]) -> bool:
    return all([(await world.row(uuid)).status in FINAL_STATUSES for uuid in uuids])


async def test_a_run_that_cannot_be_read_without_a_crash_is_given_up(tmp_path: Path) -> None:
    """It stores nothing that the machine could count, since it never gets as far as that. One with an answer waits."""
    async with open_world(tmp_path, claims=False) as world:
        answered = await begun(world, REFUND)
        await world.rest(answered, drive=True)
        await world.decide(answered)
        new = await begun(world)
        for crash in range(1, 7):
            world.database.shift_clock(31.0 * crash)
            assert {answered, new} == {claimed.row.uuid for claimed in await world.host.claim(9)}
        world.database.shift_clock(31.0 * 7)

        for claimed in await world.host.claim(9):
            await world.host.take(claimed)

        ended, waits = await world.show(new), await world.show(answered)
        assert TerminationReason.CORRUPT is ended.termination_reason
        assert waits.blocked is not None and BlockedReason.CORRUPT == waits.blocked.reason
        world.database.shift_clock(0.0)
        await world.runtime.resume(LOCAL, answered, via="test")
        assert "done" == (await world.rest(answered, drive=True)).answer


class FailingCommits(SqlRunStore):
    """Takes claims and stores no step, for a while."""

    broken: ClassVar[bool]
    problem: ClassVar[str] = "unavailable"

    async def commit(self, step: Append) -> Commit:
        """See the port."""
        if self.broken and step.entries[0].kind != "state_corrupted":
            raise StoreError(self.problem)
        return await super().commit(step)


async def test_a_database_that_stores_nothing_gives_no_run_up(tmp_path: Path) -> None:
    """Nobody dies of these runs, however often: neither of a new one nor of one with an answer."""
    FailingCommits.broken = False
    async with open_world(tmp_path, store=FailingCommits, claims=False) as world:
        answered = await begun(world, REFUND)
        await world.rest(answered, drive=True)
        await world.decide(answered)
        new = await begun(world)
        before = {uuid: (await world.row(uuid)).attempts for uuid in (answered, new)}
        FailingCommits.broken = True
        for outage in range(1, 10):
            for claimed in await world.host.claim(9):
                await world.host.take(claimed)
            world.database.shift_clock(31.0 * outage)
        FailingCommits.broken = False

        assert before == {uuid: (await world.row(uuid)).attempts for uuid in (answered, new)}
        for uuid in (answered, new):
            assert "done" == (await world.rest(uuid, drive=True)).answer


async def test_a_run_whose_step_is_refused_every_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be stored of it never can be; that is no fault of the database's."""
    FailingCommits.broken = True
    monkeypatch.setattr(FailingCommits, "problem", "data")
    async with open_world(tmp_path, store=FailingCommits, claims=False) as world:
        uuid = await begun(world)
        for crash in range(1, 9):
            for claimed in await world.host.claim(9):
                await world.host.take(claimed)
            world.database.shift_clock(31.0 * crash)

        assert TerminationReason.CORRUPT is (await world.show(uuid)).termination_reason
        assert 6 == sum(event == "run.left" for event, _ in world.logs)


async def test_a_suspect_that_was_cancelled_while_it_had_no_turn_is_closed_at_once(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False, max_runs=1) as world:
        world.script(reply("done", delay_ms=60_000))
        for _ in range(2):
            await world.runtime.enqueue(world.ask())
        await world.alter("UPDATE run SET in_vain = 4")
        first, second = await world.host.claim(2)
        world.host.take(first)
        await eventually(lambda: len(world.sent()) == 1, "the first one has the turn")

        await world.runtime.cancel(LOCAL, second.row.uuid, via="test")
        await world.host.take(second)

        assert ["cancel_requested"] == await world.kinds(second.row.uuid)
        assert (await world.row(second.row.uuid)).token is None
        await world.runtime.cancel(LOCAL, first.row.uuid, via="test")
        await eventually(lambda: _let_go(world, first.row.uuid), "the first one is closed too")


async def test_waiting_for_a_providers_slot_is_no_death(tmp_path: Path) -> None:
    """A run that waits for hours to be let act is no suspect, however many processes end meanwhile."""
    async with open_world(tmp_path) as world:
        await world.change("provider", "house", max_concurrency=1)
        world.script(reply("done", delay_ms=60_000))
        first = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: len(world.sent()) == 1, "the first one is out")
        waits = (await world.runtime.enqueue(world.ask())).uuid
        for crash in range(1, 10):
            await eventually(lambda: _waits_for_slot(world, waits), "the second one waits")
            await die(world, waits, shift=None)
            await world.alter("UPDATE run SET due_at = 0 WHERE uuid = :uuid", uuid=waits)
            world.host.wake_oldest()
            await eventually(partial(_claimed_times, world, waits, crash + 1), "it is claimed anew")

        assert [] == [fields for event, fields in world.logs if event == "run.suspected"]
        for uuid in (first, waits):
            await world.runtime.cancel(LOCAL, uuid, via="test")
            await eventually(partial(_let_go, world, uuid), "it is closed")


async def _waits_for_slot(world: World, uuid: str) -> bool:
    row = await world.row(uuid)
    return row.token is not None and row.in_vain <= 1 and row.seq == 0


async def _claimed_times(world: World, uuid: str, times: int) -> bool:
    return (await world.row(uuid)).attempts == times


async def test_an_answer_of_a_newer_build_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes. The row does not say that its answer is newer than the run."""
    async with open_world(tmp_path, claims=False) as world:
        uuid = await begun(world, REFUND)
        await world.rest(uuid, drive=True)
        with monkeypatch.context() as newer:
            as_two = lambda answer: encode_document(answer).replace(b'"version":1', b'"version":2')  # noqa: E731
            newer.setattr("codec.answers.encode_document", as_two)
            await world.decide(uuid)
        before = await world.row(uuid)
        for day in range(1, 10):
            for claimed in await world.host.claim(9):
                await world.host.take(claimed)
            world.database.shift_clock(31.0 * day)

        row = await world.row(uuid)
        assert (before.status, before.cause, before.attempts, None) == (
            row.status,
            row.cause,
            row.attempts,
            row.blocked,
        )
        assert 9 == sum(event == "run.too_new" for event, _ in world.logs)


async def _sent_or_ended(world: World, uuid: str, times: int) -> bool:
    return len(world.sent()) == times or await _ended(world, uuid)


def _executed_times(world: World, times: int) -> bool:
    return len(world.executed()) == times


async def _ended(world: World, uuid: str) -> bool:
    return (await world.row(uuid)).status is RunStatus.FAILED


async def test_a_crash_that_left_progress_does_not_count(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        calls = [reply("", call("read_at", gate=str(tmp_path / f"gate{n}"))) for n in range(8)]
        world.script(*calls, reply("done"))
        uuid = (await world.runtime.enqueue(world.ask())).uuid
        for crash in range(1, 9):
            await eventually(partial(_executed_times, world, 2 * crash - 1), "the tool runs")
            await die(world, uuid, shift=31.0 * crash)
            world.host.wake_oldest()
            await eventually(partial(_executed_times, world, 2 * crash), "it is repeated")
            (tmp_path / f"gate{crash - 1}").touch()

        shown = await world.rest(uuid)

        assert ("done", 9, 8) == (shown.answer, shown.attempts, len({e["key"] for e in world.executed()}))
        assert 9 == len(world.sent())  # nothing that was answered is paid again
        world.repeated |= {e["key"] for e in world.executed()}


async def test_limits_end_a_run_where_they_stand(tmp_path: Path) -> None:
    usage = {"input_tokens": 60, "output_tokens": 10}
    document = merged(CATALOGUE, configuration__support={"max_iterations": 2, "max_total_tokens": 200})
    async with open_world(tmp_path, document=document) as world:
        world.script(reply("", call("echo", text="x"), usage=usage), reply("end", usage=usage))
        world.script(*[reply("", call("echo", f"c{n}", text="x"), usage=usage) for n in range(2)], reply("end"))
        capped = await world.queue()
        assert (TerminationReason.MAX_ITERATIONS, True, "end") == (
            capped.termination_reason,
            capped.truncated,
            capped.answer,
        )
        assert [] == world.sent(capped.uuid)[-1]["tools"] and 3 == len(world.sent(capped.uuid))

        await world.change("configuration", "support", max_total_tokens=70)
        spent = await world.queue()
        assert (TerminationReason.BUDGET_EXHAUSTED, RunStatus.COMPLETED) == (spent.termination_reason, spent.status)
        assert 1 == len(world.sent(spent.uuid))


async def test_executing_time_counts_over_segments_and_waiting_does_not(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"max_duration_s": 1})
    async with open_world(tmp_path, document=document) as world:
        world.script(reply("", REFUND, delay_ms=600), reply("", call("echo", "c2", text="x"), delay_ms=600), reply("x"))
        uuid = (await world.queue()).uuid
        await world.decide(uuid)

        shown = await world.rest(uuid)

        assert TerminationReason.BUDGET_EXHAUSTED is shown.termination_reason
        assert 2 == len(world.sent()) == len(world.executed())


async def test_a_full_process_takes_the_rest_when_slots_free(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_runs=2) as world:
        world.script(reply("", call("read_at", gate=str(tmp_path / "gate"))), reply("done"))
        uuids = [(await world.runtime.enqueue(world.ask(prompt=str(n)))).uuid for n in range(7)]
        await eventually(lambda: len(world.executed()) == 2, "two run")
        assert 2 == world.host.running
        (tmp_path / "gate").touch()

        assert ["done"] * 7 == [(await world.rest(uuid)).answer for uuid in uuids]


async def test_a_failed_send_is_parked_and_tried_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, sweeps=True, sweep_s=0.05, retry_s=(0.05, 0.05)) as world:
        world.script(reply("done", fail={"status": 429, "times": 2}))

        shown = await world.queue()

        assert ("done", 3) == (shown.answer, len(world.sent()))
        assert 2 == (await world.kinds(shown.uuid)).count("run_resumed")


@pytest.mark.parametrize(
    ("status", "reason", "sends"),
    [
        (500, TerminationReason.RETRIES_EXHAUSTED, 3),
        (429, TerminationReason.RETRIES_EXHAUSTED, 3),
        (401, TerminationReason.NOT_RETRYABLE, 1),
        (400, TerminationReason.NOT_RETRYABLE, 1),
    ],
)
async def test_a_send_that_keeps_failing_ends_the_run(
    tmp_path: Path, status: int, reason: TerminationReason, sends: int
) -> None:
    async with open_world(tmp_path, sweeps=True, sweep_s=0.05, retry_s=(0.05, 0.05)) as world:
        world.script(reply("done", fail={"status": status, "times": 99}))

        shown = await world.queue(world.ask(snippets=["incident"]))

        assert (reason, sends, None) == (shown.termination_reason, len(world.sent()), shown.answer)
        assert [("failed", sends)] == [
            (e["state"], e["sends"]) for e in await world.exposures(shown.uuid) if e["kind"] == "snippet"
        ]


async def test_a_hop_takes_over_before_the_run_is_parked(tmp_path: Path) -> None:
    document = merged(
        CATALOGUE,
        configuration__support={"fallbacks": ["spare"]},
        configuration__spare={"provider": "eu"},
        provider__house={"script": "house.toml"},
    )
    (tmp_path / "house.toml").write_text("[[reply]]\nfail = { status = 500, times = 9 }\n")
    async with open_world(tmp_path, document=document, retry_s=()) as world:
        shown = await world.queue(world.ask(skills=["refunds"]))

        assert "done" == shown.answer
        assert [("eu", 1, "m2")] == [(s["provider"], s["hop"], s["model"]) for s in world.sent()]
        states = {(e["provider"], e["state"]) for e in await world.exposures(shown.uuid)}
        assert {("house", "failed"), ("eu", "answered")} == states


async def test_a_send_that_follows_a_failed_one_to_the_same_place_is_possible_again(tmp_path: Path) -> None:
    document = merged(
        CATALOGUE,
        configuration__support={"fallbacks": ["twin"]},
        configuration__twin={"provider": "house", "model": "m"},
    )
    async with open_world(tmp_path, document=document) as world:
        world.script(reply("done", fail={"status": 500, "times": 1}, delay_ms=300))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(lambda: len(world.sent()) == 2, "the hop is out")

        assert {("possible", 2)} == {(e["state"], e["sends"]) for e in await world.exposures(uuid)}

        await world.rest(uuid)
        assert {("answered", 2)} == {(e["state"], e["sends"]) for e in await world.exposures(uuid)}


async def test_a_send_that_a_crash_lost_stays_possible_when_the_next_one_fails(tmp_path: Path) -> None:
    """Nobody knows whether the first one arrived."""
    async with open_world(tmp_path) as world:
        world.script(reply("done", delay_ms=60_000))
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"]))).uuid
        await eventually(lambda: len(world.sent()) == 1, "the send is out")
        await die(world, uuid)
        world.script(reply("done", fail={"status": 400, "times": 9}))

        shown = await recovered(world, uuid)

        assert TerminationReason.NOT_RETRYABLE is shown.termination_reason
        assert {("possible", 2, 1)} == {(e["state"], e["sends"], e["failures"]) for e in await world.exposures(uuid)}


# --- what is gone or disabled


async def test_a_disabled_owner_blocks_a_waiting_run_and_ends_a_working_one(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        ada = await world.actor("ada", grants=["runs:start"])
        asked = await waiting(world, actor=ada)
        working = await begun(world, call("read_at", gate=str(tmp_path / "gate")), actor=ada)
        await eventually(lambda: world.executed(working), "the tool runs")
        await world.catalogue.disable_actor("ada", by="editor", via="cli")
        (tmp_path / "gate").touch()

        ended = await world.rest(working)
        world.script(reply("", REFUND), reply("done"))
        await world.decide(asked)
        blocked = await world.rest(asked)

        assert TerminationReason.POLICY_DENIED is ended.termination_reason
        assert blocked.blocked is not None and BlockedReason.OWNER is blocked.blocked.reason
        assert [] == world.executed(asked)
        await world.catalogue.add_actor({"name": "ada", "grants": ["runs:start"]}, by="editor", via="cli")
        await world.runtime.resume(LOCAL, asked, via="test")
        assert "done" == (await world.rest(asked)).answer


async def test_a_deleted_configuration_blocks_a_waiting_run_and_ends_a_working_one(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        asked = await waiting(world)
        working = await begun(world, call("read_at", gate=str(tmp_path / "gate")))
        await eventually(lambda: world.executed(working), "the tool runs")
        await world.delete("configuration", "support")
        (tmp_path / "gate").touch()
        await world.decide(asked)

        blocked, ended = await world.rest(asked), await world.rest(working)

        assert TerminationReason.CONFIGURATION_GONE is ended.termination_reason
        assert blocked.blocked is not None and BlockedReason.CONFIGURATION_GONE is blocked.blocked.reason
        assert [] == world.executed(asked)


async def test_a_configuration_deleted_before_a_run_starts_ends_it(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        uuid = await begun(world)
        await world.delete("configuration", "support")

        shown = await world.rest(uuid, drive=True)

        assert (TerminationReason.CONFIGURATION_GONE, []) == (shown.termination_reason, world.sent())


UNREADABLE: Final = "UPDATE configuration SET fallbacks = 'no list'"
READABLE: Final = "UPDATE configuration SET fallbacks = '[]'"


async def test_an_unreadable_catalogue_blocks_what_waits_and_permits_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        asked = await waiting(world, snippets=["incident"])
        await world.alter(UNREADABLE)
        await world.change("snippet", "tone", label="Bump")
        await world.decide(asked)
        blocked = await world.rest(asked)
        uuid = await begun(world, snippets=["incident"])
        ended = await world.rest(uuid)

        assert blocked.blocked is not None and BlockedReason.CATALOGUE is blocked.blocked.reason
        assert (TerminationReason.CONTEXT_BLOCKED, []) == (ended.termination_reason, world.sent(uuid))
        assert [] == world.executed() and () == blocked.dropped

        world.script(reply("", REFUND), reply("done"))
        await world.alter(READABLE)
        await world.change("snippet", "tone", label="Bump again")
        await world.runtime.resume(LOCAL, asked, via="test")
        assert "done" == (await world.rest(asked)).answer
        again = await world.runtime.requeue(LOCAL, uuid, via="test")
        world.script(reply("done"))
        assert "done" == (await world.rest(again.uuid)).answer
        sent = [m["content"] for m in world.sent(again.uuid)[0]["messages"]]
        assert any("The incident." in text for text in sent)  # what was forced is not lost on the way


async def test_a_text_that_cannot_be_opened_permits_nothing_and_is_not_tried_for_ever(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.alter("UPDATE snippet SET text = x'00' WHERE identifier = 'incident'")
        uuid = await begun(world, snippets=["incident"])
        ended = await world.rest(uuid)
        explained = await world.runtime.explain(world.ask(snippets=["incident"]))

        assert (TerminationReason.CONTEXT_BLOCKED, 1, []) == (
            ended.termination_reason,
            ended.attempts,
            world.sent(uuid),
        )
        assert Verdict.REFUSED is explained.verdict


# --- starting


async def test_the_same_key_and_body_give_the_same_run_and_another_body_is_a_conflict(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        first = await world.queue(world.ask(idempotency_key="k", tags={"a": "1", "b": "2"}))
        same = await world.runtime.enqueue(world.ask(idempotency_key="k", tags={"b": "2", "a": "1"}))
        again = await world.run(world.ask(idempotency_key="k", tags={"a": "1", "b": "2"}))

        assert (first.uuid, False, first.uuid) == (same.uuid, same.is_new, again.uuid)
        with pytest.raises(ConflictError, match="idempotency"):
            await world.runtime.enqueue(world.ask("other", idempotency_key="k"))
        assert 1 == len(world.sent())


async def test_a_key_means_the_same_request_whatever_rights_its_actor_has_by_now(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        before = await world.actor("ada", grants=["runs:start"])
        first = await world.queue(world.ask(idempotency_key="k", actor=before))
        after = await world.actor("ada", grants=["runs:start", "runs:decide"])

        again = await world.runtime.enqueue(world.ask(idempotency_key="k", actor=after))

        assert (first.uuid, False) == (again.uuid, again.is_new)
        other = await world.runtime.enqueue(world.ask(idempotency_key="k"))
        assert other.is_new  # a key is one actor's
        await world.rest(other.uuid)


@pytest.mark.parametrize("entrance", ["run", "enqueue", "explain", "dry_run"])
async def test_unknown_names_are_refused_at_every_entrance(tmp_path: Path, entrance: str) -> None:
    async with open_world(tmp_path) as world:
        start = getattr(world.runtime, entrance)
        for wrong in (
            world.ask(configuration="nobody"),
            world.ask(configuration=999),
            world.ask(snippets=["nobody"]),
            world.ask(skills=["nobody"]),
            world.ask(allowed_tool_names=("nobody",)),
        ):
            with pytest.raises(NotFoundError):
                await start(wrong)
        assert [] == await world.runtime.runs(LOCAL, RunFilter())


@pytest.mark.parametrize(
    ("text", "arrives"),
    [
        ("", ""),
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("x" * 3_000_000, None),
    ],
    ids=["empty", "nul", "surrogate", "pair", "3 MB"],
)
async def test_a_prompt_arrives_as_cleaned_once(tmp_path: Path, text: str, arrives: str | None) -> None:
    document = merged(CATALOGUE, configuration__support={"context_length": 10_000_000})
    async with open_world(tmp_path, document=document) as world:
        shown = await world.run(world.ask(text))

        assert "done" == shown.answer
        [line] = world.sent()
        assert (text if arrives is None else arrives) == line["messages"][-1]["content"]


async def test_a_prompt_that_is_too_long_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for start in (world.runtime.run, world.runtime.enqueue):
            with pytest.raises(InvalidError):
                await start(world.ask("x" * 5_000_000))
        assert [] == await world.runtime.runs(LOCAL, RunFilter())


@pytest.mark.parametrize(
    ("raw", "runs"),
    [
        ('{"order": 7}', True),
        ('{"order": ' + "9" * 900 + "}", True),
        ('{"order": ' + "9" * 1100 + "}", False),
        ('{"order": NaN}', False),
        ('{"order": 1, "order": 2}', False),
        ('{"order": 7', False),
        ("[7]", False),
        ("", False),
        ('{"order": "a\x00"}', False),
    ],
)
async def test_arguments_are_executed_whole_or_not_at_all(tmp_path: Path, raw: str, runs: bool) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("", {"id": "c1", "name": "lookup_order", "arguments": raw}), reply("done"))

        shown = await world.queue()

        assert ("done", runs) == (shown.answer, len(world.executed()) == 1)
        told = world.sent()[-1]["messages"][-1]["content"]
        assert runs is not told.startswith("Error:")


async def test_text_is_cleaned_at_every_entrance(tmp_path: Path) -> None:
    dirty, clean = "a\x00b\ud800c", "a\ufffdb\ufffdc"
    async with open_world(tmp_path) as world:
        world.script(
            reply("", call("echo", "c1", text="a\ufffdb"), call("write", "c2", n=1)),
            reply("", call("needs_person", "c3", topic="x"), call("explode_writing", "c4", word="x")),
            reply("done"),
        )
        augmentation = RunAugmentation(system_prompt_override=dirty)
        uuid = (await world.queue(world.ask(dirty, augmentation=augmentation, tags={"t": dirty}))).uuid
        await world.decide(uuid, False, reason=dirty)
        await world.rest(uuid)
        await world.decide(uuid)
        await eventually(lambda: _status_is(world, uuid, RunStatus.WAITING_FOR_INPUT), "it asks for input")
        await world.submit(uuid, '{"decision": "a\\u0000b\\ud800c"}')
        await eventually(lambda: _asks_for_outcome(world, uuid), "it asks for an outcome")
        await world.settle(uuid, call="c4", happened=dirty)

        assert "done" == (await world.rest(uuid)).answer
        messages = world.sent()[-1]["messages"]
        assert [clean, clean] == [messages[0]["content"], messages[1]["content"]]
        told = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
        assert clean in told["c2"] and clean in told["c3"] and clean == told["c4"]


async def _asks_for_outcome(world: World, uuid: str) -> bool:
    return (await world.row(uuid)).question_kind is QuestionKind.OUTCOME


@pytest.mark.parametrize("text", [None, "", "Be brief."])
async def test_an_empty_override_is_none(tmp_path: Path, text: str | None) -> None:
    async with open_world(tmp_path) as world:
        await world.queue(world.ask(augmentation=RunAugmentation(system_prompt_override=text)))

        assert (text or "You answer.") == world.sent()[0]["messages"][0]["content"]


# --- what a row alone says is not believed


async def test_a_drain_that_only_the_row_tells_of_does_not_skip_the_outcome_question(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False, checks=False) as world:
        gate = tmp_path / "gate"
        world.script(reply("", call("write_once_at", gate=str(gate))), reply("done"))
        uuid = (await world.run()).uuid
        await world.decide(uuid)
        [claimed] = await world.host.claim(1, [uuid])
        task = world.host.take(claimed)
        await eventually(lambda: len(world.executed()) == 1, "the write is in the air")
        task.cancel()
        await asyncio.wait([task])
        await world.alter("UPDATE run SET cause = 'drain', due_at = 0")
        shown = await world.rest(uuid, drive=True)

        assert shown.waiting is not None and QuestionKind.OUTCOME is shown.waiting.kind
        assert 1 == len(world.executed())


async def test_whose_run_it_is_and_how_secret_is_read_from_what_is_sealed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        eve = await world.actor("eve", grants=["runs:start"])
        world.script(reply("done"))
        shown = await world.run(world.ask(snippets=["incident"]))
        await world.alter("UPDATE run SET owner = 'eve', high_water = NULL")
        seen = await world.runtime.show(eve, shown.uuid)

        assert "done" == shown.answer
        assert seen.answer is None


async def test_rights_that_went_between_enqueue_and_composing_end_the_run(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        ann = await world.actor("ann", grants=["runs:start", "sources:force"])
        uuid = (await world.runtime.enqueue(world.ask(snippets=["incident"], actor=ann))).uuid
        await world.actor("ann", grants=["runs:start"])
        ended = await world.rest(uuid, drive=True)

        assert (TerminationReason.POLICY_DENIED, []) == (ended.termination_reason, world.sent(uuid))


async def test_a_failed_run_is_continued_once(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("done", fail={"status": 400, "times": 1}))
        uuid = (await world.run()).uuid
        again = await world.runtime.requeue(LOCAL, uuid, via="test")

        with pytest.raises(ConflictError) as refused:
            await world.runtime.requeue(LOCAL, uuid, via="test")
        assert "already_requeued" == refused.value.code
        assert "done" == (await world.rest(again.uuid)).answer


async def test_of_two_who_continue_a_failed_run_at_once_one_does(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("done", fail={"status": 400, "times": 1}))
        uuid = (await world.run()).uuid

        asked = (world.runtime.requeue(LOCAL, uuid, via="test") for _ in range(2))
        said = await asyncio.gather(*asked, return_exceptions=True)

        refused = [found for found in said if isinstance(found, ConflictError)]
        assert ["already_requeued"] == [conflict.code for conflict in refused]
        [again] = await world.store.runs(RunFilter(lineage_run=uuid))
        assert "done" == (await world.rest(again.uuid)).answer
        [told] = await world.audit(uuid, "run_requeued")
        assert again.uuid == told.detail


async def test_a_process_that_was_paused_keeps_its_own_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path) as world:
        uuid = await begun(world, call("read_at", gate=str(gate)))
        await eventually(lambda: len(world.executed()) == 1, "the read is in the air")
        world.host._renewed_at -= 1000  # as if this process had not run for longer than its lease
        await world.alter("UPDATE run SET due_at = 0")
        claimed = await world.host.claim(10)
        gate.touch()

        assert [] == claimed
        assert "done" == (await world.rest(uuid)).answer
        assert 1 == len(world.executed())


async def test_a_result_is_stored_before_the_run_waits_for_a_slot(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path) as world:
        await world.change("provider", "house", max_concurrency=1)
        asked = await waiting(world, call("write_once_at", gate=str(gate)))
        await world.decide(asked)
        await eventually(lambda: len(world.executed()) == 1, "the write is in the air")
        world.script(reply("slow", delay_ms=600))
        other = (await world.runtime.enqueue(world.ask("other"))).uuid
        await eventually(lambda: len(world.sent(other)) == 1, "the only slot is taken")
        gate.touch()

        async def stored() -> bool:
            return "tool_returned" in await world.kinds(asked)

        await eventually(stored, "the result is stored")
        assert (RunStatus.RUNNING, 1) == ((await world.row(other)).status, len(world.sent(asked)))
        assert ("slow", "slow") == ((await world.rest(asked)).answer, (await world.rest(other)).answer)
        assert (1, 2) == (len(world.executed()), len(world.sent(asked)))


async def test_a_column_that_was_changed_with_the_chain_computed_anew_is_found(tmp_path: Path) -> None:
    async with open_world(tmp_path, checks=False) as world:
        world.script(reply("done"))
        uuid = (await world.run()).uuid
        entries = await world.journal(uuid)
        forged = replace(entries[0], meta=entries[0].meta.replace("house", "other"))
        head = entry_link(uuid, forged.token, forged)
        second = replace(entries[1], prev=head)
        await world.alter("UPDATE journal SET meta = :meta WHERE seq = 1", meta=forged.meta)
        await world.alter("UPDATE journal SET prev = :prev WHERE seq = 2", prev=head)
        await world.alter("UPDATE run SET head = :head", head=entry_link(uuid, second.token, second))
        report = await world.runtime.replay(LOCAL, uuid)

        assert 2 == len(entries) and forged.meta != entries[0].meta
        assert report.divergence is not None and (1, "damaged") == (report.divergence.sequence, report.divergence.cause)
