"""Answers of people: who may give which, that only one counts, and what the run does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from codec.actor import LOCAL, Actor
from codec.events import CallVerdict
from codec.request import ModelOptions
from codec.vocabulary import BlockedReason, CallStatus, RunStatus, TerminationReason
from tests.support.world import CATALOGUE, World, call, eventually, merged, open_world, reply
from worker.runtime.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RuntimeFault,
)

pytestmark = pytest.mark.engines

REFUND: Final = call("refund_order", order=7)
ASK: Final = call("needs_person", topic="x")
DECIDER: Final = ("runs:decide", "runs:content")


async def asked(world: World, *calls: Mapping[str, Any], **changes: Any) -> str:
    """Give a run that waits for a person about these calls."""
    world.script(reply("", *(calls or (REFUND,))), reply("done"))
    shown = await world.queue(world.ask(**changes))
    assert shown.waiting is not None
    return shown.uuid


async def person(world: World, name: str, *grants: str, **fields: Any) -> Actor:
    """Create somebody who may read and decide, unless other grants are given."""
    return await world.actor(name, grants=list(grants or DECIDER), max_class="secret_adjacent", **fields)


# --- one answer


async def test_of_twenty_deciders_and_a_cancel_one_answers_and_the_cancel_ends_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("write_once_at", gate=str(gate)))
        question = await world.question(uuid)
        people = [await person(world, f"p{n}") for n in range(20)]

        async def decide(by: Actor) -> str | RuntimeFault:
            try:
                await world.decide(uuid, by=by, question=question)
                return by.name
            except ConflictError as error:
                return error

        async def cancel() -> None:
            await world.runtime.cancel(LOCAL, uuid, via="test")

        *told, _ = await asyncio.gather(*(decide(by) for by in people), cancel())
        gate.touch()
        shown = await world.rest(uuid)

        winners = [name for name in told if isinstance(name, str)]
        assert RunStatus.CANCELLED is shown.status
        assert len(winners) <= 1 and len(world.executed()) <= len(winners)
        losers = [error for error in told if isinstance(error, RuntimeFault)]
        assert 20 == len(losers) + len(winners)
        assert {e.decided_by for e in losers if e.code == "already_answered"} <= set(winners)
        assert len(winners) == len(await world.audit(uuid, "answer_given"))


async def test_of_twenty_deciders_one_answers_and_the_others_are_told_who(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        world.script(reply("", REFUND), reply("done"))
        uuid = (await world.run()).uuid
        question = await world.question(uuid)
        people = [await person(world, f"p{n}") for n in range(20)]

        told = await asyncio.gather(
            *(world.decide(uuid, n % 2 == 0, by, question=question) for n, by in enumerate(people)),
            return_exceptions=True,
        )

        [winner] = [by.name for by, error in zip(people, told, strict=True) if error is None]
        losers = [error for error in told if isinstance(error, ConflictError)]
        assert ({winner}, 19) == ({error.decided_by for error in losers}, len(losers))
        shown = await world.show(uuid)
        assert shown.waiting is not None and winner == shown.waiting.answered_by
        assert "done" == (await world.rest(uuid, drive=True)).answer
        [row] = await world.audit(uuid, "answer_given")
        assert (winner, "test") == (row.actor, row.via)


async def test_a_second_submit_loses(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        world.script(reply("", ASK), reply("done"))
        uuid = (await world.run()).uuid
        question = await world.question(uuid)

        told = await asyncio.gather(
            *(world.submit(uuid, f'{{"decision":"{n}"}}', question=question) for n in range(5)),
            return_exceptions=True,
        )

        assert 4 == sum(isinstance(error, ConflictError) for error in told)
        await world.rest(uuid, drive=True)
        assert 1 == len(world.executed())


# --- the wrong answer


async def test_what_is_not_waiting_takes_no_answer(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        done = await world.queue()

        with pytest.raises(ConflictError, match="does not wait"):
            await world.decide(done.uuid, question="0" * 32)
        for unknown in ("11111111-1111-4111-8111-111111111111", "no uuid", ""):
            with pytest.raises(NotFoundError):
                await world.decide(unknown, question="0" * 32)


async def test_a_stale_question_and_the_wrong_kind_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, ASK)
        for wrong in ("0" * 32, "", "x"):
            with pytest.raises(ConflictError) as stale:
                await world.submit(uuid, '{"decision":"go"}', question=wrong)
            assert "stale_question" == stale.value.code
        with pytest.raises(ConflictError, match="asks for input"):
            await world.decide(uuid)
        with pytest.raises(ConflictError, match="asks for input"):
            await world.settle(uuid, run=True)

        assert RunStatus.WAITING_FOR_INPUT is (await world.show(uuid)).status
        assert [] == await world.audit(uuid, "answer_given")
        await world.submit(uuid, '{"decision":"go"}')
        assert "done" == (await world.rest(uuid)).answer


async def test_an_answer_to_the_question_before_is_told_who_gave_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.script(reply("", REFUND), reply("", call("write", "c2", n=1)), reply("done"))
        uuid = (await world.queue()).uuid
        first = await world.question(uuid)
        await world.decide(uuid)
        await eventually(lambda: world.executed(uuid), "the first call ran")
        await world.rest(uuid)

        with pytest.raises(ConflictError):
            await world.decide(uuid, question=first)
        assert first != await world.question(uuid)


@pytest.mark.parametrize(
    "data",
    ["", "5", "[]", "{}", '{"decision": 7}', '{"decision": ""}', '{"decision": NaN}', '{"decision": "x"', "\x00"],
)
async def test_input_that_does_not_fit_is_refused_and_a_later_one_works(tmp_path: Path, data: str) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, ASK)

        with pytest.raises(InvalidError):
            await world.submit(uuid, data)

        assert [] == await world.audit(uuid, "answer_given")
        await world.submit(uuid, '{"decision":"go"}')
        assert "done" == (await world.rest(uuid)).answer
        assert "go" == world.executed()[0]["arguments"]["decision"]


async def test_what_a_person_supplies_cannot_be_forged_by_the_model(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("needs_person", topic="x", decision="forged"))

        await world.submit(uuid, '{"decision":"mine","topic":"not asked"}')
        await world.rest(uuid)

        assert {"topic": "x", "decision": "mine"} == world.executed()[0]["arguments"]


# --- verdicts per call


async def test_each_call_gets_its_own_verdict(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("write", "a", n=1), call("write", "b", n=2), call("echo", "c", text="x"))
        with pytest.raises(InvalidError):
            await world.decide(uuid, calls={"a": CallVerdict(approve=True)}, default=None)
        with pytest.raises(ConflictError, match="not pending"):
            await world.decide(uuid, calls={"c": CallVerdict(approve=True)})
        with pytest.raises(ConflictError, match="not pending"):
            await world.decide(uuid, calls={"nobody": CallVerdict(approve=True)})
        assert [] == await world.audit(uuid, "answer_given")

        await world.decide(uuid, False, calls={"b": CallVerdict(approve=True)}, reason="not now")
        shown = await world.rest(uuid)

        assert "done" == shown.answer
        assert [("echo", None), ("write", 2)] == sorted((x["tool"], x["arguments"].get("n")) for x in world.executed())
        results = {m["tool_call_id"]: m["content"] for m in world.sent()[-1]["messages"] if m["role"] == "tool"}
        assert {"a", "b", "c"} == set(results)
        assert "untrusted" in results["a"] and "not now" in results["a"] and "wrote 2" == results["b"]
        [row] = await world.audit(uuid, "answer_given")
        assert "approved 1, denied 1" == row.detail


async def test_edited_arguments_are_executed_in_place_of_the_proposed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("write", n=1))
        edits = {"c1": CallVerdict(approve=True, arguments='{"n": 5}')}

        await world.decide(uuid, calls=edits, default=None)
        await world.rest(uuid)

        assert [5] == [line["arguments"]["n"] for line in world.executed()]
        assert {"n": 1} == world.sent()[-1]["messages"][-2]["tool_calls"][0]["arguments"]  # the model's words stay


@pytest.mark.parametrize(
    "verdict",
    [
        CallVerdict(approve=True, arguments='{"n": "five"}'),
        CallVerdict(approve=True, arguments="[5]"),
        CallVerdict(approve=True, arguments=""),
        CallVerdict(approve=True, arguments='{"n": 1, "n": 2}'),
        CallVerdict(approve=False, arguments='{"n": 5}'),
    ],
    ids=["schema", "no object", "empty", "repeated key", "a denial"],
)
async def test_an_edit_that_cannot_stand_decides_nothing(tmp_path: Path, verdict: CallVerdict) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("write", n=1))

        with pytest.raises(InvalidError):
            await world.decide(uuid, calls={"c1": verdict}, default=None)

        assert [] == await world.audit(uuid, "answer_given")
        await world.decide(uuid, False)
        assert "done" == (await world.rest(uuid)).answer
        assert [] == world.executed()


async def test_a_turn_of_both_kinds_asks_twice_and_runs_nothing_in_between(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, ASK, call("refund_order", "c2", order=7), call("echo", "c3", text="x"))
        assert RunStatus.WAITING_FOR_APPROVAL is (await world.show(uuid)).status
        await world.decide(uuid)
        await eventually(lambda: _has_status(world, uuid, RunStatus.WAITING_FOR_INPUT), "it asks again")
        assert [] == world.executed()

        await world.submit(uuid, '{"decision":"go"}')

        assert "done" == (await world.rest(uuid)).answer
        assert ["echo", "needs_person", "refund_order"] == sorted(line["tool"] for line in world.executed())


async def _has_status(world: World, uuid: str, status: RunStatus) -> bool:
    return (await world.row(uuid)).status is status


# --- who may


async def test_strangers_find_nothing_and_readers_may_not_decide(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world)
        stranger = await person(world, "sam", "runs:start")
        reader = await person(world, "rita", "runs:read")

        with pytest.raises(NotFoundError):
            await world.decide(uuid, by=stranger)
        with pytest.raises(NotFoundError):
            await world.show(uuid, stranger)
        with pytest.raises(ForbiddenError):
            await world.decide(uuid, by=reader)
        with pytest.raises(ForbiddenError):
            await world.runtime.cancel(reader, uuid, via="test")
        waiting = (await world.show(uuid, reader)).waiting
        assert waiting is not None and waiting.calls[0].arguments is None


async def test_four_eyes_keep_the_initiator_from_releasing_but_not_from_denying(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"require_second_approver": True})
    async with open_world(tmp_path, document=document) as world:
        boss = await world.actor("boss", admin=True)
        ada = await person(world, "ada", "runs:start", *DECIDER)
        colleague = await person(world, "bea")
        for owner in (ada, boss, LOCAL):
            uuid = await asked(world, actor=owner)
            with pytest.raises(ForbiddenError) as refused:
                await world.decide(uuid, by=owner)
            assert "second_approver" == refused.value.code
            await world.decide(uuid, by=colleague)
            assert "done" == (await world.rest(uuid)).answer

        denied = await asked(world, actor=ada)
        await world.decide(denied, False, by=ada)
        assert "done" == (await world.rest(denied)).answer
        robot = await world.actor("bot", kind="service", scopes=["runs:start"])
        by_robot = await asked(world, actor=robot)
        await world.decide(by_robot, by=colleague)
        assert "done" == (await world.rest(by_robot)).answer


async def test_four_eyes_hold_for_the_human_at_the_root_of_a_requeued_run(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"require_second_approver": True})
    async with open_world(tmp_path, document=document) as world:
        ada = await person(world, "ada", "runs:start", *DECIDER)
        world.script(reply("", REFUND, fail={"status": 400, "times": 1}), reply("done"))
        failed = await world.queue(world.ask(actor=ada))
        again = await world.runtime.requeue(LOCAL, failed.uuid, via="test")
        await world.rest(again.uuid)

        with pytest.raises(ForbiddenError):
            await world.decide(again.uuid, by=ada)
        await world.decide(again.uuid)
        assert "done" == (await world.rest(again.uuid)).answer


async def test_a_service_account_releases_reads_only(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        robot = await world.actor("bot", kind="service", scopes=list(DECIDER), max_class="secret_adjacent")
        write, ask = await asked(world), await asked(world, ASK)
        read = await asked(world, call("gated_read"))

        for uuid in (write, ask):
            with pytest.raises(ForbiddenError) as refused:
                await (
                    world.decide(uuid, by=robot) if uuid == write else world.submit(uuid, '{"decision":"go"}', robot)
                )
            assert "service_account" == refused.value.code
        await world.decide(read, by=robot)
        await world.decide(write, False, by=robot)

        assert ["done", "done"] == [(await world.rest(uuid)).answer for uuid in (read, write)]
        assert ["gated_read"] == [line["tool"] for line in world.executed()]


async def test_who_may_not_read_a_call_may_deny_it_and_not_release_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        low = await world.actor("low", grants=list(DECIDER), max_class="editor_content")
        uuid = await asked(world, snippets=["incident"])

        with pytest.raises(ForbiddenError) as refused:
            await world.decide(uuid, by=low)
        waiting = (await world.show(uuid, low)).waiting

        assert "not_cleared" == refused.value.code
        assert waiting is not None and (None, None) == (waiting.calls[0].arguments, waiting.calls[0].preview)
        await world.decide(uuid, False, by=low)
        assert "done" == (await world.rest(uuid)).answer


async def test_an_admin_tool_is_released_by_admins_only_and_runs_as_its_owner(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        dora = await person(world, "dora")
        uuid = await asked(world, call("admin_write"))

        with pytest.raises(ForbiddenError) as refused:
            await world.decide(uuid, by=dora)
        assert "requires_admin" == refused.value.code
        await world.decide(uuid)
        await world.rest(uuid)
        assert 1 == len(world.executed())


async def test_a_tool_switched_off_while_the_run_waited_is_answered_with_an_error(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world)
        await world.apply(CATALOGUE | {"tool": [{"name": "refund_order", "enabled": False}]})

        await world.decide(uuid)
        shown = await world.rest(uuid)

        assert ("done", 2, []) == (shown.answer, shown.rounds, world.executed())
        assert world.sent()[-1]["messages"][-1]["content"].startswith("Error:")


async def test_a_decider_who_lost_the_right_before_the_answer_was_folded_is_asked_anew(tmp_path: Path) -> None:
    async with open_world(tmp_path, claims=False) as world:
        world.script(reply("", REFUND), reply("done"))
        uuid = (await world.run()).uuid
        dora = await person(world, "dora")
        first = await world.question(uuid)
        await world.decide(uuid, by=dora)
        await world.catalogue.disable_actor("dora", by="editor", via="cli")

        shown = await world.rest(uuid, drive=True)

        assert shown.waiting is not None
        assert (True, None, 2) == (
            first != shown.waiting.question,
            shown.waiting.answered_by,
            shown.waiting.number,
        )
        assert ([], None) == (world.executed(), shown.blocked)
        await world.decide(uuid)
        assert "done" == (await world.rest(uuid, drive=True)).answer


# --- blocked


async def test_a_denial_takes_the_place_of_a_blocked_runs_answer_and_an_approval_does_not(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        dora = await person(world, "dora")
        uuid = await asked(world, snippets=["incident"])
        await world.change("configuration", "support", provider="world")
        await world.decide(uuid, by=dora)
        blocked = await world.rest(uuid)
        assert blocked.blocked is not None

        with pytest.raises(ConflictError) as second:
            await world.decide(uuid)
        assert ("already_answered", "dora") == (second.value.code, second.value.decided_by)
        await world.decide(uuid, False)
        still = await world.rest(uuid)
        assert still.waiting is not None and (True, "local") == (still.blocked is not None, still.waiting.answered_by)

        await world.change("configuration", "support", provider="house")
        await world.runtime.resume(LOCAL, uuid, via="test")
        assert ("done", []) == ((await world.rest(uuid)).answer, world.executed())


async def test_each_try_of_a_blocked_run_checks_the_deciders_rights_again(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        dora = await person(world, "dora")
        uuid = await asked(world, snippets=["incident"])
        await world.change("configuration", "support", provider="world")
        await world.decide(uuid, by=dora)
        await world.rest(uuid)
        await world.catalogue.disable_actor("dora", by="editor", via="cli")
        await world.change("configuration", "support", provider="house")

        await world.runtime.resume(LOCAL, uuid, via="test")
        shown = await world.rest(uuid)

        assert shown.waiting is not None and (2, None) == (shown.waiting.number, shown.waiting.answered_by)
        assert [] == world.executed()


async def test_only_a_blocked_run_is_resumed_and_only_by_who_may_decide(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world)
        reader = await person(world, "rita", "runs:read")

        with pytest.raises(ConflictError, match="not blocked"):
            await world.runtime.resume(LOCAL, uuid, via="test")
        with pytest.raises(ForbiddenError):
            await world.runtime.resume(reader, uuid, via="test")


# --- time


async def test_a_question_that_ran_out_takes_no_answer_and_ends_the_run(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"approval_ttl_s": 60})
    async with open_world(tmp_path, document=document) as world:
        uuid = await asked(world)
        assert (await world.row(uuid)).expires_at is not None
        world.database.shift_clock(61)

        with pytest.raises(ConflictError) as late:
            await world.decide(uuid)
        assert "expired" == late.value.code
        world.host.wake_oldest()
        await eventually(lambda: _has_status(world, uuid, RunStatus.FAILED), "the run ends")

        shown = await world.show(uuid)
        assert (TerminationReason.EXPIRED, []) == (shown.termination_reason, world.executed())
        assert "expired" == (await world.kinds(uuid))[-1]


async def test_an_answer_in_time_counts_however_late_it_is_folded(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"approval_ttl_s": 60})
    async with open_world(tmp_path, document=document, claims=False) as world:
        world.script(reply("", REFUND), reply("done"))
        uuid = (await world.run()).uuid
        await world.decide(uuid)
        world.database.shift_clock(3600)

        assert "done" == (await world.rest(uuid, drive=True)).answer


async def test_the_expiry_of_a_blocked_run_runs_on(tmp_path: Path) -> None:
    document = merged(CATALOGUE, configuration__support={"approval_ttl_s": 60})
    async with open_world(tmp_path, document=document) as world:
        uuid = await asked(world, snippets=["incident"])
        before = (await world.row(uuid)).expires_at
        await world.change("configuration", "support", provider="world")
        await world.decide(uuid)
        assert (await world.rest(uuid)).blocked is not None
        assert before == (await world.row(uuid)).expires_at
        world.database.shift_clock(61)
        with pytest.raises(ConflictError):
            await world.runtime.resume(LOCAL, uuid, via="test")

        world.host.wake_oldest()
        await eventually(lambda: _has_status(world, uuid, RunStatus.FAILED), "the run ends")

        assert TerminationReason.EXPIRED is (await world.show(uuid)).termination_reason


# --- what the run goes on with


async def test_options_allow_list_and_counters_are_the_runs_own_after_a_wait(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        options = ModelOptions(temperature=0.3, max_tokens=512)
        uuid = await asked(world, options=options, allowed_tool_names=("refund_order", "echo"))
        await world.decide(uuid)
        await world.rest(uuid)

        first, second = world.sent()
        assert {"temperature": 0.3, "max_tokens": 512} == first["options"] == second["options"]
        assert {"refund_order", "echo"} == set(first["tools"]) == set(second["tools"])
        assert (1, 2) == (first["round"], second["round"])


# --- outcomes


async def unknown_outcome(world: World, folder: Path) -> str:
    """Give a run that asks what became of a write that died half way."""
    gate = folder / "gate"
    uuid = await asked(world, call("write_once_at", gate=str(gate)))
    await world.decide(uuid)
    await eventually(lambda: world.executed(uuid), "the tool runs")
    task = world.host.task_of((await world.row(uuid)).uid)
    assert task is not None
    task.cancel()
    await eventually(task.done, "the segment is dead")
    world.database.shift_clock(31)
    world.host.wake_oldest()
    shown = await world.rest(uuid)
    assert shown.waiting is not None and "outcome" == shown.waiting.kind
    assert RunStatus.WAITING_FOR_APPROVAL is shown.status
    return uuid


async def test_a_call_of_unknown_outcome_happened(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await unknown_outcome(world, tmp_path)
        with pytest.raises(ConflictError, match="outcome"):
            await world.decide(uuid)
        with pytest.raises(ConflictError):
            await world.settle(uuid, call="other", happened="x")
        with pytest.raises(InvalidError):
            await world.settle(uuid, happened="x", run=True)

        await world.settle(uuid, happened="it is paid")
        shown = await world.rest(uuid)

        assert ("done", 1) == (shown.answer, len(world.executed()))
        assert "it is paid" == world.sent()[-1]["messages"][-1]["content"]


async def test_a_call_of_unknown_outcome_is_run_again_under_its_key(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await unknown_outcome(world, tmp_path)
        (tmp_path / "gate").touch()

        await world.settle(uuid, run=True)
        shown = await world.rest(uuid)

        assert ("done", 2) == (shown.answer, len(world.executed()))
        world.repeated |= {line["key"] for line in world.executed()}
        assert 1 == len(world.repeated)


async def test_a_run_is_stopped_for_a_call_of_unknown_outcome(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await unknown_outcome(world, tmp_path)

        await world.settle(uuid)

        assert TerminationReason.OUTCOME_UNKNOWN is (await world.rest(uuid)).termination_reason
        assert CallStatus.UNKNOWN is (await world.state(uuid)).calls[0].status


@pytest.mark.parametrize("word", [{"happened": "yes"}, {}], ids=["happened", "stop"])
async def test_a_tool_switched_off_after_a_crash_does_not_keep_the_run(tmp_path: Path, word: dict[str, Any]) -> None:
    async with open_world(tmp_path) as world:
        uuid = await unknown_outcome(world, tmp_path)
        await world.apply(CATALOGUE | {"tool": [{"name": "write_once_at", "enabled": False}]})

        with pytest.raises(ForbiddenError):
            await world.settle(uuid, run=True)
        await world.settle(uuid, **word)

        assert (await world.rest(uuid)).termination_reason in (
            TerminationReason.COMPLETED,
            TerminationReason.OUTCOME_UNKNOWN,
        )
        assert 1 == len(world.executed())


async def test_a_write_that_raised_asks_and_one_that_did_nothing_does_not(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        raised = await asked(world, call("explode_writing", word="x"))
        nothing = await asked(world, call("refuse_writing", word="x"))
        for uuid in (raised, nothing):
            await world.decide(uuid)
        shown = await world.rest(raised)

        assert shown.waiting is not None and "outcome" == shown.waiting.kind
        assert "done" == (await world.rest(nothing)).answer


async def test_a_refused_outcome_waits_blocked_like_any_answer(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        uuid = await asked(world, call("explode_writing", word="x"), snippets=["incident"])
        await world.decide(uuid)
        await world.rest(uuid)
        await world.change("configuration", "support", provider="world")
        await world.settle(uuid, run=True)
        shown = await world.rest(uuid)

        assert shown.blocked is not None and BlockedReason.CONTEXT is shown.blocked.reason
        assert (1, 1) == (len(world.executed()), len(world.sent()))
