"""No word of content stands in the open: not in an error, a log, the database's clear columns, or a message.

A marker is planted in every source, prompt, override, argument, result, input, edit, outcome and reason, and looked for
in all of these, after success and after every kind of failure.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from codec.actor import LOCAL
from codec.commands import Permit
from codec.events import CallVerdict
from codec.request import AgentRunRequest, Caller, ModelOptions, RunAugmentation
from codec.transcript import ModelReply
from codec.vocabulary import RunStatus, TerminationReason
from tests.support.world import CATALOGUE, World, call, eventually, merged, open_world, reply
from worker.ports.models import ModelRequest
from worker.ports.runs import StoreError
from worker.runtime.errors import RuntimeFault

MARK: Final = "zq7" + "marker"
SOURCES: Final = merged(
    CATALOGUE,
    configuration__support={"system_prompt": f"Prompt {MARK}.", "system_prompt_data_class": "public_content"},
    snippet__incident={"text": f"Snippet {MARK}."},
    skill__refunds={"body": f"Skill {MARK}."},
)


def request(world: World, **changes: Any) -> AgentRunRequest:
    """Ask with the marker in every place that a caller fills."""
    return world.ask(
        f"Prompt {MARK}",
        **{
            "augmentation": RunAugmentation(
                forced_snippet_uids=("incident",), forced_skill_uids=("refunds",), system_prompt_override=f"O {MARK}"
            ),
            "options": ModelOptions(stop=(MARK,)),
            "tags": {"t": MARK},
            "idempotency_key": MARK,
            "caller": Caller(extension=MARK, operation=MARK),
            **changes,
        },
    )


class Watch:
    """Collects what was told to anybody, to be searched at the end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def error(self, error: BaseException) -> None:
        """Remember an error as any handler could print it: with its chain and its fields."""
        self.told.extend(traceback.format_exception(error))
        seen: BaseException | None = error
        while seen is not None:
            self.told.append(f"{seen!r} {vars(seen)}")
            seen = seen.__cause__ or seen.__context__

    async def refused(self, awaitable: Any) -> None:
        """Await what must fail."""
        with pytest.raises((RuntimeFault, StoreError)) as caught:
            await awaitable
        self.error(caught.value)


@asynccontextmanager
async def watched(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    document: Mapping[str, Any] = SOURCES,
    **more: Any,
) -> AsyncIterator[tuple[World, Watch]]:
    """Open a world and look for the marker in everything that is in the open when it closes."""
    watch = Watch()
    caplog.set_level(logging.DEBUG)
    async with open_world(folder, document=document, **more) as world:
        yield world, watch
        watch.told.extend(str(entry) for entry in world.logs)
        watch.told.extend(await clear_side(world))
    watch.told.extend(record.getMessage() + str(record.exc_text) for record in caplog.records)
    printed = capfd.readouterr()
    watch.told += [printed.out, printed.err]
    assert [] == [text for text in watch.told if MARK in text]
    stored = stored_bytes(folder)
    assert b"incident" in stored and MARK.encode() not in stored


def stored_bytes(folder: Path) -> bytes:
    """Give the database as it lies on the disk, its log included."""
    return b"".join(file.read_bytes() for file in folder.glob("regate.db*"))


async def clear_side(world: World) -> list[str]:
    """Give the lists that people without a right to content see."""
    rows = await world.select("SELECT uuid FROM run")
    reader = await world.actor("rita", grants=["runs:read"])
    found: list[str] = []
    for row in rows:
        shown = await world.show(row["uuid"], reader)
        assert shown.answer is None
        found += [str(shown), str(await world.runtime.events(reader, row["uuid"]))]
        found += [str(audit) for audit in await world.audit(row["uuid"])]
    return found


Fixtures = tuple[pytest.LogCaptureFixture, pytest.CaptureFixture[str]]


@pytest.fixture
def ears(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Fixtures:
    return caplog, capfd


async def test_nothing_is_told_by_a_run_that_succeeds(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears) as (world, watch):
        calls = (
            call("echo", "c1", text=MARK),
            call("refund_order", "c2", order=7),
            call("set_label", "c3", order=1, label=MARK),
        )
        asks = (call("needs_person", "c4", topic=MARK), call("write", "c5", n=1), call(MARK, "c6", text=MARK))
        world.script(reply(MARK, *calls), reply(MARK, *asks), reply(f"done {MARK}"))
        uuid = (await world.queue(request(world))).uuid
        edit = CallVerdict(approve=True, arguments=f'{{"order":1,"label":"{MARK} edited"}}', reason=MARK)
        await world.decide(uuid, calls={"c3": edit}, reason=MARK)
        await world.rest(uuid)
        watch.told.extend(await clear_side(world))
        await world.decide(uuid, False, reason=f"no {MARK}")
        await eventually(lambda: _is(world, uuid, RunStatus.WAITING_FOR_INPUT), "it asks for input")
        await world.submit(uuid, f'{{"decision":"{MARK}"}}')

        shown = await world.rest(uuid)

        assert f"done {MARK}" == shown.answer
        assert MARK in str(world.sent()) and MARK in str(world.executed())


async def _is(world: World, uuid: str, status: RunStatus) -> bool:
    return (await world.row(uuid)).status is status


async def test_nothing_is_told_by_refusals_and_blocked_runs(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears) as (world, watch):
        world.script(reply(MARK, call("set_label", order=1, label=MARK)), reply("done"))
        uuid = (await world.queue(request(world))).uuid
        await world.change("configuration", "support", provider="world")
        await world.decide(uuid, reason=MARK)
        assert (await world.rest(uuid)).blocked is not None
        await watch.refused(world.decide(uuid, reason=MARK))
        refused = await world.queue(request(world, idempotency_key="other"))

        assert TerminationReason.CONTEXT_BLOCKED is refused.termination_reason
        assert 2 <= len(await world.audit(None, "context_blocked"))
        await world.runtime.cancel(LOCAL, uuid, via="test")


async def test_nothing_is_told_by_tools_that_fail(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears) as (world, _):
        writes = (
            call("explode", "c1", word=MARK),
            call("explode_writing", "c2", word=MARK),
            call("refuse_writing", "c3", word=MARK),
        )
        raw = {"id": "c4", "name": "echo", "arguments": f'{{"text": "{MARK}'}
        world.script(reply(MARK, *writes, raw, call("echo", "c5", other=MARK)), reply("done"))
        uuid = (await world.queue(request(world))).uuid
        await world.decide(uuid)
        await world.rest(uuid)
        await world.settle(uuid, call="c2", happened=f"paid {MARK}")

        assert "done" == (await world.rest(uuid)).answer
        told = {m["tool_call_id"]: m["content"] for m in world.sent()[-1]["messages"] if m["role"] == "tool"}
        assert [c for c in ("c1", "c3", "c4", "c5") if MARK in told[c]] == []  # not even the model


class Raising:
    """A model whose adapter fails in a way that nobody foresaw."""

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """Raise what it was sent."""
        raise RuntimeError(f"{MARK} {request.messages}")


async def test_nothing_is_told_by_models_that_fail(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears, models=Raising()) as (world, _):
        shown = await world.queue(request(world))

        assert TerminationReason.NOT_RETRYABLE is shown.termination_reason
        assert ("model.raised", "RuntimeError") in [(name, fields.get("error")) for name, fields in world.logs]


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_nothing_is_told_by_a_provider_that_refuses(tmp_path: Path, ears: Fixtures, status: int) -> None:
    async with watched(tmp_path, *ears, retry_s=()) as (world, _):
        world.script(reply(MARK, fail={"status": status, "times": 9}))

        assert RunStatus.FAILED is (await world.queue(request(world))).status


async def test_nothing_is_told_by_damaged_documents(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears, claims=False) as (world, watch):
        world.script(reply(MARK, call("set_label", order=1, label=MARK)), reply("done"))
        uuid = (await world.run(request(world))).uuid
        question = await world.question(uuid)
        await world.alter("UPDATE doc SET payload = substr(payload, 1, 40) WHERE kind = 'state'")
        await watch.refused(world.decide(uuid, question=question, reason=MARK))
        queued = (await world.runtime.enqueue(request(world, idempotency_key="other"))).uuid
        await world.alter("UPDATE doc SET payload = x'00' WHERE kind = 'request'")

        ended = await world.rest(queued, drive=True)

        assert TerminationReason.CORRUPT is ended.termination_reason
        await watch.refused(world.runtime.requeue(LOCAL, queued, via="test"))
        world.damaged |= {uuid, queued}


async def test_nothing_is_told_by_a_database_that_refuses(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears) as (world, watch):
        world.script(reply(MARK, call("set_label", order=1, label=MARK)), reply(f"done {MARK}"))
        uuid = (await world.queue(request(world))).uuid
        question = await world.question(uuid)
        for table in ("inbox", "journal"):
            await world.alter(
                f"CREATE TRIGGER no_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        await watch.refused(world.decide(uuid, question=question, reason=MARK))
        assert [] == await world.audit(uuid, "answer_given")  # what cannot be stored is not audited either
        await world.alter("DROP TRIGGER no_inbox")
        await world.decide(uuid, question=question, reason=MARK)
        await eventually(lambda: [f for name, f in world.logs if name == "run.left"], "the run is left")
        assert [] == world.executed()

        await world.alter("DROP TRIGGER no_journal")
        world.database.shift_clock(31)
        world.host.wake_oldest()
        await eventually(lambda: _is(world, uuid, RunStatus.COMPLETED), "the run goes on")


BAD_REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "too long": {"messages": ({"role": "user", "content": MARK * 600_000},)},
    "open call": {
        "messages": (
            {"role": "user", "content": MARK},
            {"role": "assistant", "content": "", "tool_calls": [{"id": MARK, "name": MARK, "arguments": MARK}]},
        )
    },
    "schema": {"options": ModelOptions(response_schema={"x": float("nan"), "y": MARK})},
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_nothing_is_told_by_requests_that_are_refused(tmp_path: Path, ears: Fixtures, name: str) -> None:
    async with watched(tmp_path, *ears) as (world, watch):
        for start in (world.runtime.run, world.runtime.enqueue, world.runtime.explain, world.runtime.dry_run):
            await watch.refused(start(request(world, **BAD_REQUESTS[name])))


async def test_nothing_is_told_by_answers_that_are_refused(tmp_path: Path, ears: Fixtures) -> None:
    async with watched(tmp_path, *ears) as (world, watch):
        world.script(reply("", call("set_label", order=1, label=MARK)), reply("done"))
        asks = (await world.queue(request(world))).uuid
        for arguments in (f'{{"order":"{MARK}"}}', f'{{"{MARK}', f'"{MARK}"', f'{{"{MARK}":1,"{MARK}":2}}'):
            edit = CallVerdict(approve=True, arguments=arguments, reason=MARK)
            await watch.refused(world.decide(asks, calls={"c1": edit}))
        world.script(reply("", call("needs_person", topic=MARK)), reply("done"))
        inputs = (await world.queue(request(world, idempotency_key="other"))).uuid
        for data in (f'{{"decision":7,"{MARK}":1}}', MARK, f'["{MARK}"]', f'{{"decision":"{MARK}'):
            await watch.refused(world.submit(inputs, data))
        await watch.refused(world.submit(inputs, MARK, question=MARK))
        await watch.refused(world.decide(asks, False, reason=MARK * 600_000))
