"""People at a desk: they start runs, answer questions more than once and too late, cancel, resume and requeue.

They know what a person would know: what the runtime shows. What they are refused is noted and forgotten.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from codec.actor import LOCAL, Actor
from codec.answers import OutcomeWord
from codec.events import CallVerdict
from codec.request import AgentRunRequest, RunAugmentation
from codec.vocabulary import ActorKind, QuestionKind, RunStatus
from codec.wire import Shown, ShownWaiting
from tests.simulation.content import ACTORS, CONFIGURATIONS
from tests.simulation.watch import Row
from worker.ports.catalogue import CatalogueError
from worker.ports.records import RunFilter
from worker.ports.runs import StoreError
from worker.runtime.answers import Verdicts
from worker.runtime.errors import RuntimeFault

if TYPE_CHECKING:
    from tests.simulation.fleet import Process

__all__ = ["People"]

_STARTERS: Final = ("local", "local", "alice", "alice", "bob", "robot")
_DECIDERS: Final = ("local", "bob", "carol", "dave", "dave", "robot", "alice")
_VIA: Final = "simulation"
_FITTING: Final = {
    "support": ("incident", "plan", "remark"),
    "chained": ("plan", "remark", "tone"),
    "careful": ("plan", "remark", "tone"),
}
"""Snippets that a configuration's providers may get, as the installation begins."""


def _actor(uid: int, fields: dict[str, Any]) -> Actor:
    """Give an actor as it arrives with a request, with the rights that it began with."""
    rights = {name: tuple(fields.get(name, ())) for name in ("grants", "scopes")}
    kind = ActorKind(fields.get("kind", "user"))
    return Actor(kind=kind, name=fields["name"], uid=uid, admin=fields.get("admin", False), **rights)


_ACTORS: Final = {"local": LOCAL} | {fields["name"]: _actor(uid, fields) for uid, fields in enumerate(ACTORS, 1)}


class People:
    """Everybody who sits at one desk."""

    def __init__(self, desk: Process) -> None:
        self._desk = desk
        self._sim = desk.sim
        self._runtime = desk.runtime
        self._chance = desk.sim.chance(f"people of {desk.name}")
        self._blocked: dict[str, int] = {}

    def begin(self) -> list[asyncio.Task[Any]]:
        """Sit down."""
        every = self._sim.plan.act_every_s
        deeds = (
            ("starter", self._start, 0.4),
            ("decider", self._decide, every),
            ("canceller", self._cancel, 6.0),
            ("resumer", self._resume, 2.0),
            ("requeuer", self._requeue, 2.0),
            ("onlooker", self._look, 3.0),
        )
        return [self._desk.spawn(self._acting(deed, seconds), name) for name, deed, seconds in deeds]

    async def _acting(self, deed: Callable[[], Awaitable[None]], every_s: float) -> None:
        while self._sim.storming:
            await asyncio.sleep(self._sim.pause(self._chance.uniform(0.1, 1.9) * every_s))
            if self._sim.storming:
                await self._try(deed)

    async def _try(self, deed: Callable[[], Awaitable[None]]) -> None:
        try:
            await deed()
        except RuntimeFault as refused:
            self._sim.note(self._desk, "refused", code=refused.code, run=self._sim.known(refused.uuid))
            self._sim.invariants.told(refused.code, refused.uuid)
        except (StoreError, CatalogueError) as failed:
            self._sim.note(self._desk, "failed", error=str(failed))

    def _rows(self, wanted: Callable[[Row], bool]) -> list[Row]:
        """Give the rows of the runs that are wanted: what the list of runs would show, had it no costs."""
        return [known.row for known in self._sim.watch.runs.values() if wanted(known.row)]

    # --- starting

    async def _start(self) -> None:
        if self._sim.begun >= self._sim.plan.runs:
            return
        self._sim.begun += 1
        request = await self._request()
        if request.idempotency_key is not None and self._chance.random() < 0.5:
            await asyncio.gather(*(self._try(partial(self._begin, request)) for _ in range(2)))
        else:
            await self._begin(request)

    async def _begin(self, request: AgentRunRequest) -> None:
        if self._chance.random() < 0.25:
            handle = await self._runtime.begin(request)
            if self._chance.random() < 0.5:
                driving = self._try(partial(self._runtime.drive, handle.uuid))
                self._desk.people.append(self._desk.spawn(driving, "drive"))
        else:
            handle = await self._runtime.enqueue(request)
        self._sim.accepted(handle.uuid, request)
        self._sim.note(self._desk, "accepted", run=self._sim.known(handle.uuid), new=handle.is_new)

    async def _request(self) -> AgentRunRequest:
        chance = self._chance
        actor = _ACTORS[chance.choice(_STARTERS)]
        key = f"key-{chance.randint(1, 3)}" if chance.random() < 0.3 else None
        configuration = chance.choice(CONFIGURATIONS)
        return AgentRunRequest(
            configuration=configuration,
            messages=({"role": "user", "content": f"question {key}"},),  # type: ignore[arg-type]
            augmentation=self._augmentation(configuration) if actor.name != "bob" and key is None else None,
            actor=actor,
            idempotency_key=key,
            allowed_tool_names=("look", "pay", "label") if chance.random() < 0.2 and key is None else None,
        )

    def _augmentation(self, configuration: str) -> RunAugmentation | None:
        chance = self._chance
        if chance.random() < 0.3:
            return None
        # Mostly what may leave at first: a run that is refused at its start shows nothing any more.
        fitting = _FITTING[configuration] if chance.random() < 0.9 else _FITTING["support"]
        return RunAugmentation(
            forced_snippet_uids=tuple(chance.sample(fitting, chance.randint(0, 2))),
            forced_skill_uids=("runbook",) if configuration != "chained" and chance.random() < 0.3 else (),
            system_prompt_override="‹prompt_override x 1› instead" if chance.random() < 0.2 else None,
        )

    # --- answering

    async def _decide(self) -> None:
        waiting = self._rows(lambda row: row.waits)
        if not waiting:
            return
        row = self._chance.choice(waiting)
        names = self._chance.sample(_DECIDERS, self._chance.choice((1, 1, 2, 3)))
        if len(names) == 1:
            await self._answer(row, names[0])
        else:
            await asyncio.gather(*(self._try(partial(self._answer, row, name)) for name in names))

    async def _answer(self, row: Row, name: str, *, wrongly: bool = True) -> None:
        actor = _ACTORS[name]
        shown = (await self._see(row.uuid, actor)).waiting
        if shown is None or not shown.calls:
            return  # it went on between the two reads
        question = shown.question
        self._sim.questions.append(question)
        if wrongly and self._chance.random() < 0.15:
            question = self._chance.choice((*self._sim.questions[-8:], self._desk.clock.nonce()))
        await asyncio.sleep(self._chance.uniform(0.0, 0.4))
        self._sim.note(self._desk, "answers", run=self._sim.known(row.uuid), by=name, kind=shown.kind)
        await self._say(actor, row.uuid, question, shown)

    async def _say(self, actor: Actor, uuid: str, question: str, shown: ShownWaiting) -> None:
        if shown.kind is QuestionKind.APPROVAL:
            await self._runtime.decide(actor, uuid, question, self._verdicts(shown), via=_VIA)
        elif shown.kind is QuestionKind.INPUT:
            await self._runtime.submit(actor, uuid, question, '{"note": "said"}', via=_VIA)
        else:
            asked = next((c.id for c in shown.calls if c.decision is None or c.gated), shown.calls[0].id)
            named = self._chance.choice([c.id for c in shown.calls]) if self._sim.storming else None
            await self._settle(actor, uuid, question, [named] if named else [asked, *(c.id for c in shown.calls)])

    async def _settle(self, actor: Actor, uuid: str, question: str, calls: list[str]) -> None:
        """Say what became of a call; which one is asked about is not shown, so try them in turn."""
        fate = self._chance.random()
        for index, call in enumerate(calls, 1):
            word = OutcomeWord(call=call, happened="it did" if fate < 0.5 else None, run=0.5 <= fate < 0.85)
            try:
                await self._runtime.settle(actor, uuid, question, word, via=_VIA)
            except RuntimeFault as refused:
                if refused.code != "not_pending" or index == len(calls):
                    raise
            else:
                return

    def _verdicts(self, shown: ShownWaiting) -> Verdicts:
        chance, calls = self._chance, {}
        for call in shown.calls:
            if call.gated and chance.random() < 0.3:
                edit = None
                if chance.random() < 0.5 and isinstance(call.arguments, dict):
                    edit = json.dumps({**call.arguments, "note": "edited"})
                approve = edit is not None or chance.random() < 0.5
                calls[call.id] = CallVerdict(approve=approve, arguments=edit)
        return Verdicts(default=chance.random() < 0.8, calls=calls)

    # --- steering

    async def _cancel(self) -> None:
        rows = self._rows(lambda row: not row.final)
        if rows:
            row = self._chance.choice(rows)
            self._sim.note(self._desk, "cancels", run=self._sim.known(row.uuid))
            await self._runtime.cancel(LOCAL, row.uuid, via=_VIA)

    async def _resume(self) -> None:
        rows = self._rows(lambda row: row.waits and row.blocked is not None)
        if rows:
            row = self._chance.choice(rows)
            self._sim.note(self._desk, "resumes", run=self._sim.known(row.uuid))
            await self._runtime.resume(LOCAL, row.uuid, via=_VIA)

    async def _requeue(self) -> None:
        rows = self._rows(lambda row: row.status == "failed")
        if rows and self._sim.begun < self._sim.plan.runs + 2:
            self._sim.begun += 1
            failed = self._chance.choice(rows)
            people = self._chance.choice((1, 1, 2))
            await asyncio.gather(*(self._try(partial(self._continue, failed)) for _ in range(people)))

    async def _continue(self, failed: Row) -> None:
        handle = await self._runtime.requeue(LOCAL, failed.uuid, via=_VIA)
        self._sim.ledger.accepted.append(handle.uuid)
        self._sim.note(self._desk, "requeued", run=self._sim.known(handle.uuid))

    async def _look(self) -> None:
        """Look at a run, sometimes two at once, and most of all at one that works."""
        rows = await self._runtime.runs(LOCAL, RunFilter())
        if rows:
            working = [row for row in rows if row.status is RunStatus.RUNNING]
            run = self._chance.choice(working or rows).uuid
            await asyncio.gather(*(self._see(run) for _ in range(self._chance.choice((1, 2)))))
            await self._runtime.events(LOCAL, run)
            await self._runtime.replay(LOCAL, run)

    async def _see(self, run: str, by: Actor = LOCAL) -> Shown:
        shown = await self._runtime.show(by, run)
        self._sim.invariants.told("shown" if shown.blocked is None else shown.blocked.reason, run)
        return shown

    # --- after the storm

    async def settle_all(self) -> None:
        """Answer everything until every run has ended; what stays blocked is resumed twice and then cancelled."""
        while True:
            left = self._rows(lambda row: not row.final)
            if not left:
                return
            for row in left:
                if row.waits and row.cause is None:
                    await self._try(partial(self._help, row))
            await asyncio.sleep(0.1)

    async def _help(self, row: Row) -> None:
        if row.blocked is None:
            await self._answer(row, "local" if row.owner != "local" else "dave", wrongly=False)
            return
        tries = self._blocked[row.uuid] = self._blocked.get(row.uuid, 0) + 1
        if tries <= 2:
            await self._runtime.resume(LOCAL, row.uuid, via=_VIA)
        else:
            await self._runtime.cancel(LOCAL, row.uuid, via=_VIA)
