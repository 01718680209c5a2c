"""The re-gate of a resumed run: what forced sources count for when the catalogue changed while the run waited.

Every cell asks a person, edits the catalogue, answers, and looks at the verdict, the audit, what was executed and what
was sent. Refused cells are then pointed back and resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from codec.actor import LOCAL
from codec.vocabulary import Enforcement, RunStatus, TerminationReason
from codec.wire import Shown
from tests.support.world import CATALOGUE, World, call, eventually, merged, open_world, reply

pytestmark = pytest.mark.engines("all")

FORCED: Final = "forced"
ASKS: Final = {"approval": call("refund_order", order=7), "input": call("needs_person", topic="x")}
NAMES: Final = {"snippet": "incident", "skill": "refunds"}
_SKILL_FIELDS: Final = {"text": "body", "active": "enabled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit; `record` is `kind__identifier`, or FORCED; `fields` None deletes."""

    record: str
    fields: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happens to the catalogue while the run waits, and what must come of it.

    Shape: refused cells name class, zone and provider; `undo` points back.
    """

    edits: tuple[Edit, ...]
    verdict: str
    setup: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forced_class: str = "internal_configuration"
    refused_class: str = "internal_configuration"
    zone: str = "external_global"
    provider: str = "world"
    undo: tuple[Edit, ...] = ()
    sent_to: str = "eu"
    composed_as: str = "permitted"
    gone: bool = False


def forced(**fields: Any) -> Edit:
    return Edit(record=FORCED, fields=fields)


def support(**fields: Any) -> Edit:
    return Edit(record="configuration__support", fields=fields)


def policy(mode: str) -> Edit:
    return Edit(record="policy__policy", fields={"data_class_enforcement": mode})


AWAY: Final = support(provider="world")
BACK: Final = support(provider="eu")
CASES: Final[dict[str, Case]] = {
    "nothing": Case(edits=(), verdict="permitted"),
    "class raised": Case(
        edits=(forced(data_class="secret_adjacent"),),
        verdict="refused",
        refused_class="secret_adjacent",
        zone="external_eu",
        provider="eu",
        undo=(forced(data_class="internal_configuration"),),
    ),
    "class lowered": Case(edits=(forced(data_class="editor_content"), AWAY), verdict="permitted", sent_to="world"),
    "text changed and lowered": Case(
        edits=(forced(data_class="public_content", text="Nothing to see."), AWAY), verdict="refused", undo=(BACK,)
    ),
    "deactivated": Case(edits=(forced(active=False),), verdict="permitted"),
    "deactivated and re-pointed": Case(edits=(forced(active=False), AWAY), verdict="refused", undo=(BACK,)),
    "deleted": Case(edits=(Edit(record=FORCED, fields=None), AWAY), verdict="permitted", sent_to="world", gone=True),
    "provider re-pointed": Case(edits=(AWAY,), verdict="refused", undo=(BACK,)),
    "zone changed": Case(
        edits=(Edit(record="provider__eu", fields={"trust_zone": "external_global"}),),
        verdict="refused",
        provider="eu",
        undo=(Edit(record="provider__eu", fields={"trust_zone": "external_eu"}),),
    ),
    "fallback added": Case(edits=(support(fallbacks=["spare"]),), verdict="refused", undo=(support(fallbacks=[]),)),
    "fallback removed": Case(
        setup={"configuration__support": {"fallbacks": ["spare"]}},
        forced_class="editor_content",
        edits=(forced(data_class="internal_configuration"), support(fallbacks=[])),
        verdict="permitted",
    ),
    "observe to enforce": Case(
        setup={"policy__": {"data_class_enforcement": "observe"}, "configuration__support": {"provider": "world"}},
        edits=(policy("enforce"),),
        verdict="refused",
        undo=(policy("observe"),),
        sent_to="world",
        composed_as="observed",
    ),
    "enforce to observe": Case(edits=(AWAY, policy("observe")), verdict="observed", sent_to="world"),
}


def document(case: Case) -> dict[str, Any]:
    """Build the catalogue that a cell begins with."""
    forced_class = {"data_class": case.forced_class}
    base = merged(
        CATALOGUE,
        configuration__support={"provider": "eu"},
        snippet__incident=forced_class,
        skill__refunds=forced_class,
    )
    return merged(base, **case.setup)


async def edit(world: World, kind: str, edits: tuple[Edit, ...]) -> None:
    """Make these edits, for forced records of this kind."""
    for one in edits:
        record, fields = one.record, one.fields
        if record == FORCED:
            record = f"{kind}__{NAMES[kind]}"
            if kind == "skill" and fields is not None:
                fields = {_SKILL_FIELDS.get(name, name): value for name, value in fields.items()}
        table, _, identifier = record.partition("__")
        if fields is None:
            await world.delete(table, identifier)
        else:
            await world.change(table, identifier, **fields)


async def check_refused(world: World, case: Case, kind: str, waiting: Shown) -> None:
    """Nothing ran, nothing left, one audit row, and everybody is told why."""
    uuid = waiting.uuid
    shown = await world.show(uuid)
    name = f'{kind} "{NAMES[kind]}"'

    assert waiting.status is shown.status
    assert shown.waiting is not None and waiting.waiting is not None and shown.blocked is not None
    assert (waiting.waiting.question, "local") == (shown.waiting.question, shown.waiting.answered_by)
    told = shown.blocked
    assert ("context", name, case.refused_class) == (told.reason, told.source, told.data_class)
    assert (case.zone, case.provider, "support") == (told.zone, told.provider, told.configuration)
    assert ([], 1) == (world.executed(uuid), len(world.sent(uuid)))
    [row] = [r for r in await world.audit(uuid, "context_blocked") if r.mode == Enforcement.ENFORCE]
    assert (name, case.refused_class, case.zone, case.provider) == (row.source, row.data_class, row.zone, row.provider)
    assert ("local", "support", told.ceiling) == (row.actor, row.configuration, row.ceiling)


async def check_finished(world: World, case: Case, kind: str, shown: Shown, given: list[int]) -> None:
    """The call ran once, one more send went to the right place, and the forced uids are as given."""
    uuid = shown.uuid

    assert (RunStatus.COMPLETED, "done", None) == (shown.status, shown.answer, shown.blocked)
    assert 1 == len(world.executed(uuid))
    assert case.sent_to == world.sent(uuid)[-1]["provider"] and 2 == len(world.sent(uuid))
    assert given == list(shown.forced.snippets + shown.forced.skills)
    assert given == [c.uid for c in shown.carried if c.origin == "forced"]
    assert ([(given[0], "gone", "resumed")] if case.gone else []) == [(d.uid, d.reason, d.when) for d in shown.dropped]
    modes = [row.mode for row in await world.audit(uuid, "context_blocked")]
    expected = ["observe"] if "observed" in (case.composed_as, case.verdict) else []
    assert expected == [m for m in modes if m == "observe"][: len(expected)]
    if case.verdict != "refused":
        assert expected == modes


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("queued", [True, False], ids=["queued", "synchronous"])
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", CASES)
async def test_what_changed_while_a_run_waited_is_judged_before_anything_runs(
    tmp_path: Path, name: str, kind: str, queued: bool, asks: str
) -> None:
    case = CASES[name]
    async with open_world(tmp_path, claims=queued, document=document(case)) as world:
        world.script(reply("", ASKS[asks]), reply("done"))
        given = [await world.uid(kind, NAMES[kind])]
        request = world.ask(snippets=[NAMES[kind]]) if kind == "snippet" else world.ask(skills=[NAMES[kind]])
        waiting = await (world.queue(request) if queued else world.run(request))
        assert waiting.waiting is not None and asks == waiting.waiting.kind

        await edit(world, kind, case.edits)
        await world.answer(waiting.uuid)
        shown = await world.rest(waiting.uuid, drive=not queued)

        if case.verdict == "refused":
            await check_refused(world, case, kind, waiting)
            await edit(world, kind, case.undo)
            await world.runtime.resume(LOCAL, waiting.uuid, via="test")
            shown = await world.rest(waiting.uuid, drive=not queued)
        await check_finished(world, case, kind, shown, given)


async def test_resume_of_a_run_that_is_still_refused_changes_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, document=document(CASES["nothing"])) as world:
        world.script(reply("", ASKS["approval"]), reply("done"))
        waiting = await world.queue(world.ask(snippets=["incident"]))
        await edit(world, "snippet", (AWAY,))
        await world.decide(waiting.uuid)
        await world.rest(waiting.uuid)

        for _ in range(3):
            await world.runtime.resume(LOCAL, waiting.uuid, via="test")
            await world.rest(waiting.uuid)

        await check_refused(world, CASES["provider re-pointed"], "snippet", waiting)


async def test_a_second_suspension_keeps_the_uids_as_given(tmp_path: Path) -> None:
    async with open_world(tmp_path, document=document(CASES["nothing"])) as world:
        world.script(reply("", ASKS["approval"]), reply("", call("write", "c2", n=1)), reply("done"))
        uids = (await world.uid("snippet", "incident"), await world.uid("snippet", "tone"))
        first = await world.queue(world.ask(snippets=["incident", "tone"], skills=["refunds"]))
        await world.delete("snippet", "tone")
        await world.change("skill", "refunds", enabled=False)
        await world.decide(first.uuid)
        second = await world.rest(first.uuid)

        assert second.waiting is not None and 2 == second.waiting.number
        assert uids == second.forced.snippets == (await world.state(first.uuid)).forced_snippet_uids
        await world.change("configuration", "support", provider="world")
        await world.decide(first.uuid)
        shown = await world.rest(first.uuid)
        assert shown.blocked is not None
        assert 'skill "refunds"' == shown.blocked.source  # switched off, but carried; the later of equals is named

        await world.change("configuration", "support", provider="eu")
        await world.runtime.resume(LOCAL, first.uuid, via="test")
        assert RunStatus.COMPLETED is (await world.rest(first.uuid)).status


async def test_a_requeued_run_carries(tmp_path: Path) -> None:
    async with open_world(tmp_path, document=document(CASES["nothing"])) as world:
        world.script(reply("", call("echo", text="x")), reply("done", fail={"status": 400, "times": 1}))
        failed = await world.queue(world.ask(snippets=["incident"]))
        assert TerminationReason.NOT_RETRYABLE is failed.termination_reason
        await edit(world, "snippet", (forced(active=False), AWAY))

        again = await world.runtime.requeue(LOCAL, failed.uuid, via="test")
        shown = await world.rest(again.uuid)

        assert TerminationReason.CONTEXT_BLOCKED is shown.termination_reason
        assert (failed.forced, failed.carried) == (shown.forced, shown.carried)
        assert [] == world.sent(again.uuid)
        assert ['snippet "incident"'] == [r.source for r in await world.audit(again.uuid, "context_blocked")]
        await edit(world, "snippet", (BACK,))
        once_more = await world.runtime.requeue(LOCAL, again.uuid, via="test")
        assert ("done", failed.uuid) == ((await world.rest(once_more.uuid)).answer, shown_from(shown))


def shown_from(shown: Shown) -> str:
    assert shown.lineage is not None
    return shown.lineage.from_


async def test_a_recovered_run_carries(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, document=document(CASES["nothing"])) as world:
        world.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        handle = await world.runtime.enqueue(world.ask(snippets=["incident"]))
        await eventually(lambda: world.executed(handle.uuid), "the tool runs")
        task = world.host.task_of((await world.row(handle.uuid)).uid)
        assert task is not None
        task.cancel()
        await eventually(task.done, "the segment is dead")
        await edit(world, "snippet", (forced(active=False), AWAY))

        gate.touch()
        world.database.shift_clock(31)
        world.host.wake_oldest()
        shown = await world.rest(handle.uuid)

        assert TerminationReason.CONTEXT_BLOCKED is shown.termination_reason
        assert (1, 1) == (len(world.sent()), len(world.executed()))


async def test_a_drained_run_carries(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_world(tmp_path, document=document(CASES["nothing"]), checks=False) as first:
        first.script(reply("", call("read_at", gate=str(gate))), reply("done"))
        handle = await first.runtime.enqueue(first.ask(snippets=["incident"]))
        await eventually(lambda: first.executed(handle.uuid), "the tool runs")
        gate.touch()
        await first.host.drain(5)
        assert 0 == (await first.row(handle.uuid)).attempts
        await edit(first, "snippet", (forced(active=False), AWAY))

    async with open_world(tmp_path, create=False) as second:
        second.host.wake_oldest()
        shown = await second.rest(handle.uuid)

        assert TerminationReason.CONTEXT_BLOCKED is shown.termination_reason
        assert (1, 1) == (len(second.sent()), len(second.executed()))
