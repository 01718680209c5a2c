"""The driver: feeds one held run through the machine, commits each step, then performs what it commanded.

Write first, act second: a command is performed only after the transaction of its step is committed. Every path through
here ends with the run released, or with its lease left to end (a crash, a lost lease).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict

import msgspec

from codec.catalogue import CatalogueSnapshot
from codec.commands import CallModel, CallTool, Preview, Target
from codec.events import (
    CancelRequested,
    Event,
    ModelFailed,
    ModelReplied,
    PolicyReplaced,
    Previewed,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolReturned,
)
from codec.facts import Facts
from codec.suspended import SuspendedRunState
from codec.vocabulary import CallStatus, Phase, SourceKind
from worker.core.machine import step
from worker.ports.records import Append, Commit, CommitStatus
from worker.ports.runs import StoreError
from worker.ports.toolbox import PREVIEW_LIMIT_S
from worker.runtime.effects import Answered, Failed, Outcome, Previewing, Returned, perform
from worker.runtime.feed import PolicyFeed
from worker.runtime.hold import Hold
from worker.runtime.journalling import append_of
from worker.runtime.metadata import Stepped
from worker.runtime.parts import Parts
from worker.runtime.slots import ProviderSlots, Slot

__all__ = ["CANCELLED_WORD", "Follow", "Segment", "Stamp", "live_facts", "stamp"]

CANCELLED_WORD: Final = "run_cancelled"
"""The audit's word for a cancel."""

Follow = Callable[[SuspendedRunState, int], Event | None]
"""Given the state after a step and the policy's version, the event that belongs into the same transaction, if any."""


class Stamp(TypedDict):
    """Fields of every event."""

    nonce: str
    elapsed_ms: int
    policy: int


class Segment:
    """One continuous execution of a run under one lease."""

    def __init__(self, parts: Parts, feed: PolicyFeed, slots: ProviderSlots, hold: Hold) -> None:
        self._parts = parts
        self._feed = feed
        self._slots = slots
        self._hold = hold
        self._flights: dict[asyncio.Task[Outcome], CallModel | CallTool | Preview] = {}

    async def drive(self, first: Event, follow: Follow | None = None) -> None:
        """Fold `first` (and what follows it at once), then go on until the run rests, is lost, or is released.

        Errors: `StoreError` when a step cannot be stored; the lease then ends by itself and the run is recovered.
        """
        try:
            going = await self._advance([first], follow)
            while going:
                going = await self._advance(await self._next(), None)
        finally:
            await self._stop()

    async def _next(self) -> list[Event]:
        """Wait for what happens next: results of flights, or a cancel. A drain waits for the flights."""
        hold = self._hold
        while True:
            done = [task for task in self._flights if task.done()]
            if done:
                return [self._event(task) for task in done]
            if hold.cancelled:
                return await self._closing([])
            await hold.attention.wait()
            hold.attention.clear()

    async def _until(self, task: asyncio.Future[Any]) -> None:
        """Wait until the task is done or something wants this run's attention."""
        waiter = asyncio.ensure_future(self._hold.attention.wait())
        try:
            await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            self._hold.attention.clear()

    async def _advance(self, events: list[Event], follow: Follow | None) -> bool:
        """Compute, take a slot, commit, perform. False when the run is no longer ours."""
        while events:
            steps = self._compute(events, follow)
            slot = await self._slot(steps)
            if follow is not None and self._hold.draining:
                # Folding an answer and then giving the run up would spend the answer on nothing.
                _give_back(slot)
                await self._parts.store.give_back(self._hold.row, self._hold.token)
                return False
            release = self._releases(steps[-1].result.state) or self._hold.yielding
            append = append_of(
                self._hold, self._parts.sealer, steps, retry_s=self._parts.figures.retry_s, release=release
            )
            try:
                commit = await self._parts.store.commit(append)
            except BaseException:
                _give_back(slot)
                raise
            if commit.status is CommitStatus.COMMITTED:
                return self._take(append, steps, commit, slot)
            _give_back(slot)
            if commit.status is CommitStatus.LOST:
                self._parts.log("lease.lost", {"run": self._hold.row.uuid})
                return False
            if commit.status is CommitStatus.CANCELLED:
                events, follow = await self._closing(events), None
            else:
                events = await self._under_new_policy(events)
        return True

    async def _slot(self, steps: Sequence[Stepped]) -> Slot | None:
        """Take the provider's slot before the commit, so that no permit ages while it waits for one.

        What a step has to record must not wait with it: without a free slot a step that holds a result is committed
        at once, unsent, and the run given up as in a drain; the next segment has nothing to lose while it waits.
        A drain or a cancel ends the wait: the first releases the run instead of sending, the second closes it.
        """
        target = _target(steps)
        hold = self._hold
        if target is None or hold.interrupted:
            return None
        slot = self._slots.take(target)
        if slot is not None:
            return slot
        if any(isinstance(s.event, ModelReplied | ModelFailed | ToolReturned | ToolFailed) for s in steps):
            hold.yielding = True
            return None
        if hold.row.in_vain > 1 and hold.seq == hold.row.seq and not hold.spared:
            # Whoever waits to be let act has not died of the run, however often its process ends meanwhile.
            hold.spared = True
            await self._parts.store.spare(hold.row.uid, hold.token)
        taking = asyncio.ensure_future(self._slots.acquire(target))
        try:
            while not (taking.done() or hold.interrupted):
                await self._until(taking)
        except asyncio.CancelledError:
            _abandon(taking)
            raise
        if taking.done():
            return taking.result()
        _abandon(taking)
        return None

    def _compute(self, events: Sequence[Event], follow: Follow | None) -> list[Stepped]:
        steps: list[Stepped] = []
        state = self._hold.state
        for event in events:
            result = step(state, event)
            steps.append(Stepped(before=state, event=event, result=result))
            state = result.state
        after = None if follow is None or state is None else follow(state, steps[-1].event.policy)
        if after is not None and state is not None:
            steps.append(Stepped(before=state, event=after, result=step(state, after)))
        return steps

    def _releases(self, state: SuspendedRunState) -> bool:
        """Whether this step gives a working run up: drained, and nothing of it is in the air."""
        return self._hold.draining and not self._flights and state.phase in (Phase.MODEL, Phase.TOOLS)

    def _take(self, append: Append, steps: Sequence[Stepped], commit: Commit, slot: Slot | None) -> bool:
        hold = self._hold
        hold.state = steps[-1].result.state
        hold.seq += len(append.entries)
        hold.head = append.head
        hold.proved_at = max(hold.proved_at, commit.at)
        hold.last_sent = tuple(e for e in append.exposures if e.sends) or hold.last_sent
        if hold.turn is not None and hold.state.counters.barren == 0:
            hold.turn.end()
        if append.release:
            _give_back(slot)
            return False
        self._perform(hold.state, steps, commit.at, slot)
        return True

    def _perform(
        self, state: SuspendedRunState, steps: Sequence[Stepped], committed_at: float, slot: Slot | None
    ) -> None:
        for stepped in steps:
            for command in stepped.result.commands:
                if isinstance(command, CallModel | CallTool | Preview) and _stands(state, command):
                    flight = perform(self._parts, self._hold, state, command, committed_at)
                    task = asyncio.ensure_future(flight)
                    self._flights[task] = command
                    task.add_done_callback(self._attend)
                    self._hold.allow(self._parts.clock.monotonic() + self._limit_s(command))
                    if slot is not None and isinstance(command, CallModel):
                        task.add_done_callback(lambda _, held=slot: held.release())  # type: ignore[misc]

    def _limit_s(self, command: CallModel | CallTool | Preview) -> float:
        """Give how long a command may be away: its own limit, and a lease in which to obey that."""
        figures = self._parts.figures
        match command:
            case CallModel():
                return figures.send_timeout_s + figures.lease_s
            case CallTool():
                return command.timeout_ms / 1000 + figures.lease_s
            case Preview():
                return PREVIEW_LIMIT_S + figures.lease_s

    def _attend(self, _: object) -> None:
        self._hold.attention.set()

    def _event(self, task: asyncio.Task[Outcome]) -> Event:
        del self._flights[task]
        if not self._flights:
            self._hold.deadline = math.inf
        outcome = task.result()
        match outcome:
            case Answered():
                return ModelReplied(**self._stamp(), send=outcome.send, reply=outcome.reply)
            case Returned():
                return ToolReturned(**self._stamp(), call=outcome.call, result=outcome.result)
            case Previewing():
                return Previewed(**self._stamp(), call=outcome.call, lines=outcome.lines, failed=outcome.failed)
            case Failed(send=str() as send):
                return ModelFailed(
                    **self._stamp(), send=send, failure=outcome.failure, not_before_ms=outcome.not_before_ms
                )
            case Failed():
                return ToolFailed(**self._stamp(), call=outcome.call or "", failure=outcome.failure)

    def _stamp(self) -> Stamp:
        return stamp(self._parts, self._hold, 0 if self._hold.state is None else self._hold.state.policy)

    async def _closing(self, events: Sequence[Event]) -> list[Event]:
        """Close a run that was cancelled under us: the closing entry, then what calls in flight did, as stale.

        Sends and previews are stopped; calls in flight finish first, so that it is known what they did. Should this
        process die meanwhile, the sweeper closes the run.
        """
        self._hold.cancelled = True
        await self._halt([task for task, command in self._flights.items() if not isinstance(command, CallTool)])
        if self._flights:
            await asyncio.wait(list(self._flights))
        late = [e for e in events if isinstance(e, ToolReturned | ToolFailed | ModelReplied)]
        late += [e for task in list(self._flights) if isinstance(e := self._event(task), ToolReturned | ToolFailed)]
        closing: list[Event] = [CancelRequested(**self._stamp(), by=await self._canceller())]
        return closing if self._hold.state is None else [*closing, *late]

    async def _canceller(self) -> str:
        """Give who cancelled, as the audit has it: this segment was only told that somebody did."""
        try:
            rows = await self._parts.store.audit(self._hold.row.uuid, None)
        except StoreError:
            return "unknown"
        return next((row.actor for row in reversed(rows) if row.decision == CANCELLED_WORD), "unknown")

    async def _under_new_policy(self, events: list[Event]) -> list[Event]:
        """Compute the same step anew under the live policy; its facts are recorded when they changed for this run."""
        if any(isinstance(e, RunStarted) for e in events):
            return [await self._started_again(e) for e in events if isinstance(e, RunStarted)]
        state = self._hold.state
        if state is None:
            raise AssertionError("only a start comes before there is a state")
        snapshot, facts = await live_facts(self._feed, state)
        changed = None if facts == state.facts else facts
        kept = [e for e in events if not isinstance(e, PolicyReplaced)]
        renewed = [_restamped(e, snapshot.version) for e in kept]
        if renewed and isinstance(renewed[0], RunResumed):
            return [msgspec.structs.replace(renewed[0], facts=changed), *renewed[1:]]
        if changed is None:
            return renewed
        return [PolicyReplaced(**stamp(self._parts, self._hold, snapshot.version), facts=changed), *renewed]

    async def _started_again(self, event: RunStarted) -> Event:
        composed = await self._feed.compose(event.request)
        return msgspec.structs.replace(event, facts=composed.facts, texts=composed.texts, policy=composed.policy)

    async def _stop(self) -> None:
        await self._halt(list(self._flights))

    async def _halt(self, tasks: Sequence[asyncio.Task[Outcome]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=self._parts.figures.lease_s)
            if stuck:
                # What does not end when it is told to must not keep the run: nothing that it does counts any more.
                self._parts.log("command.stuck", {"run": self._hold.row.uuid, "commands": len(stuck)})
        for task in tasks:
            del self._flights[task]


def _target(steps: Sequence[Stepped]) -> Target | None:
    """Give where the committed state's open send goes."""
    sends = (c for s in reversed(steps) for c in s.result.commands if isinstance(c, CallModel))
    return next((c.permit.target for c in sends if _stands(steps[-1].result.state, c)), None)


def _give_back(slot: Slot | None) -> None:
    if slot is not None:
        slot.release()


def _abandon(taking: asyncio.Future[Slot]) -> None:
    taking.add_done_callback(lambda done: None if done.cancelled() else done.result().release())
    taking.cancel()


async def live_facts(feed: PolicyFeed, state: SuspendedRunState) -> tuple[CatalogueSnapshot, Facts]:
    """Read the live policy and select this run's facts: its configuration, owner, and everything it carries."""
    snapshot = await feed.current()
    carried = [(c.kind, c.uid) for c in state.carried]
    facts = feed.facts(
        snapshot,
        configuration=state.configuration,
        owner=state.owner,
        snippets=[*state.forced_snippet_uids, *(uid for kind, uid in carried if kind is SourceKind.SNIPPET)],
        skills=[*state.forced_skill_uids, *(uid for kind, uid in carried if kind is SourceKind.SKILL)],
    )
    return snapshot, facts


def stamp(parts: Parts, hold: Hold, policy: int) -> Stamp:
    """Give what every event carries."""
    return Stamp(nonce=parts.clock.nonce(), elapsed_ms=hold.elapsed_ms(parts.clock.monotonic()), policy=policy)


def _restamped(event: Event, policy: int) -> Event:
    return msgspec.structs.replace(event, policy=policy)


def _stands(state: SuspendedRunState, command: CallModel | CallTool | Preview) -> bool:
    """Whether a committed command is still what the state waits for after the whole transaction."""
    match command:
        case CallModel():
            return state.send is not None and state.send.id == command.send
        case CallTool():
            return any(c.id == command.call and c.status is CallStatus.OPEN for c in state.calls)
        case Preview():
            return any(c.id == command.call and c.status is CallStatus.PREVIEW for c in state.calls)
