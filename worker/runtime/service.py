"""The runtime's service: what frontends, people and commands ask of runs. One path, whoever asks.

Every method takes the actor who asks; what the actor may not know of is not found. Errors are `RuntimeFault`s with
stable codes; none carries content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codec.actor import Actor, LiveActor
from codec.answers import Answer, OutcomeWord
from codec.errors import CodecError
from codec.ids import parse_run_uuid
from codec.journal import ENTRY_VERSION
from codec.request import AgentRunRequest
from codec.suspended import STATE_VERSION, Question, SuspendedRunState
from codec.vocabulary import (
    FINAL_STATUSES,
    WAITING_STATUSES,
    Origin,
    QuestionKind,
    RunStatus,
)
from codec.wire import DryRun, Explained, Shown
from worker.core.people import holds
from worker.ports.records import AuditRow, InboxRow, NewRun, RunFilter, RunRow
from worker.runtime import answers, joining, rights, starting
from worker.runtime.driver import CANCELLED_WORD, live_facts
from worker.runtime.errors import ConflictError, NotFoundError, UnavailableError
from worker.runtime.feed import PolicyFeed
from worker.runtime.handle import Handle
from worker.runtime.host import Host
from worker.runtime.journalling import entry_link, entry_row
from worker.runtime.parts import Parts
from worker.runtime.replaying import ReplayReport, replay_run
from worker.runtime.requeueing import requeued
from worker.runtime.views import look_inside, shown

__all__ = ["Runtime", "at_rest"]

_POLL_S: Final = 0.05
"""Seconds between looks at a row that somebody waits for."""
_CANCEL_TRIES: Final = 20
"""A cancel races with the run's own steps; each try sees a newer row."""


def at_rest(row: RunRow) -> bool:
    """Whether nothing more happens to a run by itself: it ended, or it waits and no answer or resume is under way."""
    return row.status in FINAL_STATUSES or (row.status in WAITING_STATUSES and row.cause is None)


class Runtime:
    """All verbs. Belongs to one event loop."""

    def __init__(self, parts: Parts, feed: PolicyFeed, host: Host) -> None:
        self.parts = parts
        self.feed = feed
        self.host = host
        self._waking: set[asyncio.Task[bool]] = set()

    # --- starting

    async def run(self, request: AgentRunRequest, *, origin: Origin = Origin.PLAYGROUND) -> Shown:
        """Start a run here and drive it to its rest; the same path as a queued one."""
        begun = await self.begin(request, origin=origin)
        await self.drive(begun.uuid)
        return await self.show(request.actor, begun.uuid)

    async def begin(self, request: AgentRunRequest, *, origin: Origin = Origin.PLAYGROUND) -> Handle:
        """Start a run that is driven here, without waiting for it: its row is written as held by this process."""
        row, is_new = await self._create(request, origin, claim=True)
        if is_new:
            self.host.take_own(row)
        return self._handle(row.uuid, is_new=is_new)

    async def enqueue(
        self, request: AgentRunRequest, *, origin: Origin = Origin.QUEUE, connection: object | None = None
    ) -> Handle:
        """Store a run and tell a worker. Works while Redis is down: the sweeper finds the run.

        With a `connection` (docs/enqueue.md) the run is written in its open transaction and nobody is told: commit,
        then `wake` the handle. An async one is awaited; a sync one is used here and now, on the calling thread.
        Errors: `InvalidError` for a connection that cannot be used; its transaction goes on, as after any error here.
        """
        if connection is None:
            row, is_new = await self._create(request, origin, claim=False)
            await self.parts.signals.wake([row.uuid])
        else:
            row, is_new = await joining.join(self.parts.store, connection, await self.prepare(request, origin))
        return self._handle(row.uuid, is_new=is_new)

    async def prepare(self, request: AgentRunRequest, origin: Origin, *, claim: bool = False) -> NewRun:
        """Build the row of a run, sealed, without storing it."""
        request = await self._resolved(request)
        return starting.new_run(self.parts, self.feed.held, request, origin, claim=claim)

    def _handle(self, uuid: str, *, is_new: bool) -> Handle:
        return Handle(uuid, is_new=is_new, tell=lambda run: self.wake_soon([run]))

    async def explain(self, request: AgentRunRequest) -> Explained:
        """Say what the gate would decide; writes nothing."""
        request = await self._resolved(request)
        return starting.explain(await self.feed.compose(request), request)

    async def dry_run(self, request: AgentRunRequest) -> DryRun:
        """Assemble what would be sent; sends and writes nothing."""
        request = await self._resolved(request)
        return starting.dry_run(await self.feed.compose(request), request)

    async def _resolved(self, request: AgentRunRequest) -> AgentRunRequest:
        snapshot = await self.feed.current()
        rights.must_start(rights.live(snapshot, request.actor), request)
        return starting.resolved(snapshot, [t.name for t in self.parts.toolbox.facts()], request)

    async def _create(self, request: AgentRunRequest, origin: Origin, *, claim: bool) -> tuple[RunRow, bool]:
        new = await self.prepare(request, origin, claim=claim)
        row, is_new = await self.parts.store.create(new)
        return joining.must_be_same(row, new), is_new

    # --- looking

    async def show(self, actor: Actor, uuid: str) -> Shown:
        """Give the show document, with texts as far as the actor may read them."""
        row, live = await self._seen(actor, uuid)
        inside = await look_inside(self.parts, row)
        composed = inside.state is not None and inside.state.run
        facts = (await live_facts(self.feed, inside.state))[1] if inside.state is not None and composed else None
        return shown(row, inside, content=rights.may_see_content(live, inside, facts))

    async def row(self, actor: Actor, uuid: str) -> RunRow:
        """Give the row of a run that the actor may see."""
        return (await self._seen(actor, uuid))[0]

    async def runs(self, actor: Actor, wanted: RunFilter) -> list[RunRow]:
        """List runs, newest first: all with `runs:read`, else the actor's own."""
        live = rights.live(await self.feed.current(), actor)
        if not holds(live, "runs:read"):
            wanted = msgspec.structs.replace(wanted, owner=actor.name)
        return await self.parts.store.runs(wanted)

    async def events(self, actor: Actor, uuid: str, after: int = 0) -> list[dict[str, Any]]:
        """Give the journal's clear side: sequence, time, kind, round, segment and what the step was about."""
        row, _ = await self._seen(actor, uuid)
        found = []
        for entry in await self.parts.store.entries(row.uid, after):
            meta = _meta(entry.meta)
            head = {"sequence": entry.seq, "at": entry.at, "kind": entry.kind, "round": meta.pop("round", 0)}
            found.append({**head, "segment": entry.segment, **meta})
        return found

    async def audit(self, actor: Actor, uuid: str | None, since: float | None) -> list[AuditRow]:
        """Read the audit: of one run that the actor may see, or all of it with the grant `runs:read`."""
        if uuid is not None:
            await self._seen(actor, uuid)
        elif not holds(rights.live(await self.feed.current(), actor), "runs:read"):
            raise NotFoundError("not_found", "there is no audit for you to read")
        return await self.parts.store.audit(uuid, since)

    async def replay(self, actor: Actor, uuid: str, until: int | None = None) -> ReplayReport:
        """Replay a run under its recorded policy."""
        row, _ = await self._seen(actor, uuid)
        return await replay_run(self.parts, row, until=until)

    async def _seen(self, actor: Actor, uuid: str) -> tuple[RunRow, LiveActor]:
        row, live = await self._found(actor, uuid)
        rights.must_see(live, row)
        return row, live

    async def _found(self, actor: Actor, uuid: str) -> tuple[RunRow, LiveActor]:
        try:
            row = await self.parts.store.run(parse_run_uuid(uuid))
        except CodecError:
            row = None
        if row is None:
            raise NotFoundError("not_found", "there is no such run", uuid=uuid)
        return row, rights.live(await self.feed.current(), actor)

    # --- answering

    async def decide(self, actor: Actor, uuid: str, question: str, said: answers.Verdicts, *, via: str) -> None:
        """Answer an approval question: one document that covers every gated call."""
        row, live, state, asked = await self._asked(actor, uuid, question, QuestionKind.APPROVAL)
        answer = answers.answer_decision(state, asked, said, actor, via)
        denial = all(not v.approve for v in (answer.verdicts or {}).values())
        await self._give(row, state, answer, live, QuestionKind.APPROVAL, replaces=denial)

    async def submit(self, actor: Actor, uuid: str, question: str, data: str, *, via: str) -> None:
        """Answer an input question with a JSON object."""
        row, live, state, asked = await self._asked(actor, uuid, question, QuestionKind.INPUT)
        answer = answers.answer_input(state, asked, data, actor, via)
        await self._give(row, state, answer, live, QuestionKind.INPUT, replaces=False)

    async def settle(self, actor: Actor, uuid: str, question: str, word: OutcomeWord, *, via: str) -> None:
        """Say what became of a call of unknown outcome."""
        row, live, state, asked = await self._asked(actor, uuid, question, QuestionKind.OUTCOME)
        answer = answers.answer_outcome(state, asked, word, actor, via)
        await self._give(row, state, answer, live, QuestionKind.OUTCOME, replaces=False)

    async def _asked(
        self, actor: Actor, uuid: str, question: str, kind: QuestionKind
    ) -> tuple[RunRow, LiveActor, SuspendedRunState, Question]:
        """Give the run, the decider's rights, the state and the open question, when it is the one that was shown."""
        row, live = await self._found(actor, uuid)
        rights.must_decide(live, row)
        try:
            state = await self._waiting_state(row)
            return row, live, state, answers.must_be_open(row, state, question, kind)
        except ConflictError as conflict:
            # Whoever comes second wants to know who came first, also when the run has long gone on.
            stored = await self.parts.store.inbox(row.uid, question)
            if stored is None or conflict.code == "wrong_question":
                raise
            raise ConflictError(
                "already_answered", _SAID["answered"], uuid=uuid, decided_by=stored.decided_by
            ) from None

    async def _waiting_state(self, row: RunRow) -> SuspendedRunState:
        if row.status not in WAITING_STATUSES:
            raise ConflictError("not_waiting", _SAID["not_waiting"], uuid=row.uuid)
        inside = await look_inside(self.parts, row)
        if inside.state is None:
            reason = "unreadable" if inside.blocked is None else inside.blocked.value
            raise UnavailableError(reason, "the run's state cannot be read here; nothing was done", uuid=row.uuid)
        return inside.state

    async def _give(
        self,
        row: RunRow,
        state: SuspendedRunState,
        answer: Answer,
        live: LiveActor,
        kind: QuestionKind,
        *,
        replaces: bool,
    ) -> None:
        _, facts = await live_facts(self.feed, state)
        answers.released(facts, state, answer, live)
        key = self.parts.sealer.unwrap(row.wrapped_key, row.key_id)
        payload = self.parts.sealer.seal(key, "answer", row.uuid, answer.question, answer.encode())
        stored = await self.parts.store.answer(
            row,
            InboxRow(
                question=answer.question,
                kind=_INBOX_KIND[kind],
                decided_by=live.name,
                via=answer.via,
                payload=payload,
            ),
            _audit(row, "answer_given", live.name, answer.via, _gist(answer)),
            replace=replaces,
        )
        if stored.problem is not None:
            raise ConflictError(
                _CONFLICT.get(stored.problem, stored.problem),
                _SAID.get(stored.problem, "the answer was not stored"),
                uuid=row.uuid,
                decided_by=stored.decided_by,
            )
        await self.parts.signals.wake([row.uuid])

    async def resume(self, actor: Actor, uuid: str, *, via: str) -> None:
        """Try a blocked run again. Its answer's giver is checked anew when the answer is folded."""
        row, live = await self._found(actor, uuid)
        rights.must_decide(live, row)
        audit = _audit(row, "resume_requested", live.name, via, None)
        if row.blocked is None or not await self.parts.store.retry_blocked(row, audit):
            raise ConflictError("not_blocked", "the run is not blocked", uuid=uuid)
        await self.parts.signals.wake([uuid])

    async def cancel(self, actor: Actor, uuid: str, *, via: str) -> None:
        """End a run. Final when written; a call in flight finishes and is recorded."""
        for _ in range(_CANCEL_TRIES):
            row, live = await self._found(actor, uuid)
            rights.must_cancel(live, row)
            if row.status is RunStatus.CANCELLED:
                return
            if row.status in FINAL_STATUSES:
                raise ConflictError("already_ended", "the run has ended", uuid=uuid)
            audit = _audit(row, CANCELLED_WORD, live.name, via, None)
            if row.status is RunStatus.RUNNING:
                if await self.parts.store.cancel_running(row, audit):
                    self.host.notice_cancel(row.uid)
                    return
            elif await self._close(row, live.name, audit):
                return
        raise UnavailableError("busy", "the run changes faster than it can be cancelled; try again", uuid=uuid)

    async def _close(self, row: RunRow, by: str, audit: AuditRow) -> bool:
        entry = entry_row("cancel_requested", seq=row.seq + 1, segment=row.segment, policy=0, prev=row.head, by=by)
        return await self.parts.store.close(row, entry, entry_link(row.uuid, row.token or "", entry), audit)

    async def requeue(self, actor: Actor, uuid: str, *, via: str) -> Handle:
        """Continue a failed run as a new one, from its last entry; what it carried it carries on."""
        row, live = await self._found(actor, uuid)
        rights.must_decide(live, row)
        if row.status is not RunStatus.FAILED:
            raise ConflictError("not_failed", "only a failed run can be requeued", uuid=uuid)
        if await self.parts.store.runs(RunFilter(lineage_run=uuid, limit=1)):
            raise ConflictError("already_requeued", "the run was continued already", uuid=uuid)
        new = await requeued(self.parts, row)
        audit = _audit(row, "run_requeued", live.name, via, new.uuid)
        created, is_new = await self.parts.store.create(msgspec.structs.replace(new, audits=(audit,)))
        if not is_new:  # somebody else continued it since we looked
            raise ConflictError("already_requeued", "the run was continued already", uuid=uuid)
        await self.parts.signals.wake([created.uuid])
        return self._handle(created.uuid, is_new=True)

    # --- waiting

    async def drive(self, uuid: str) -> None:
        """See a run to its rest, claiming it here whenever it is due and nobody else has it.

        Returns early when this process drains: the run is released, and whoever comes next goes on with it.
        """
        while True:
            row = await self.parts.store.run(uuid)
            if row is None or at_rest(row) or not self._can_open(row):
                return
            held = self.host.task_of(row.uid)
            if held is not None:
                await asyncio.wait([held])
                continue
            if self.host.draining:
                return
            claimed = await self.host.claim(1, [uuid])
            if claimed:
                await asyncio.wait([self.host.take(claimed[0])])
            else:
                await asyncio.sleep(_POLL_S)

    async def wait(self, uuid: str) -> None:
        """Wait until a run rests, driven by whoever has it."""
        while True:
            row = await self.parts.store.run(uuid)
            if row is None or at_rest(row):
                return
            await asyncio.sleep(_POLL_S)

    def _can_open(self, row: RunRow) -> bool:
        return row.key_id in self.parts.sealer.key_ids and row.doc_version <= max(STATE_VERSION, ENTRY_VERSION)

    def wake_soon(self, uuids: Sequence[str]) -> None:
        """Send wake-ups in the background; `woken` waits for them."""
        task = asyncio.ensure_future(self.parts.signals.wake(uuids))
        self._waking.add(task)
        task.add_done_callback(self._woke)

    def _woke(self, task: asyncio.Task[bool]) -> None:
        self._waking.discard(task)
        failed = None if task.cancelled() else task.exception()
        if failed is not None:  # nobody waits for it: the process ends, or it is a bug
            self.parts.log("wake.failed", {"error": type(failed).__name__})

    async def woken(self) -> None:
        """Wait until the wake-ups that are on their way were sent or given up, which takes seconds at most."""
        if self._waking:
            await asyncio.wait(self._waking)


_INBOX_KIND: Final = {
    QuestionKind.APPROVAL: "decision",
    QuestionKind.INPUT: "input",
    QuestionKind.OUTCOME: "outcome",
}
_CONFLICT: Final = {"answered": "already_answered", "stale": "stale_question"}
_SAID: Final = {
    "answered": "somebody else has answered already",
    "stale": "that question is no longer open; look again",
    "expired": "the question has expired",
    "not_waiting": "the run does not wait for an answer",
}


def _audit(row: RunRow, decision: str, actor: str, via: str, detail: str | None) -> AuditRow:
    return AuditRow(
        decision=decision, actor=actor, via=via, run=row.uuid, configuration=row.configuration, detail=detail
    )


def _meta(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"damaged": True}  # changed in the database; replay says where


def _gist(answer: Answer) -> str:
    if answer.verdicts is not None:
        given = [v.approve for v in answer.verdicts.values()]
        return f"approved {given.count(True)}, denied {given.count(False)}"
    return "input" if answer.data is not None else "outcome"
