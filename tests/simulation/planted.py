"""Faults planted into the product, each by replacing one function: what the simulation has to find.

`within` is the number of schedules in which it must. Most are found in the first few of any; for those that need luck
`first` is a seed that has it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from codec.actor import LiveActor
from codec.events import Event, RunResumed
from codec.suspended import SuspendedRunState
from codec.vocabulary import FailureClass, Phase, ResumeCause
from tests.simulation.plan import Climate
from worker.adapters.sql import claims, commit, inbox, reads, store, writer
from worker.adapters.sql.claims import claim_due
from worker.adapters.sql.clock import CLOCK_OPTION
from worker.adapters.sql.tables import key_ring, run
from worker.core import answering, machine, sources, transitions
from worker.core.settling import ask_again
from worker.ports.records import Append, Commit, CommitStatus, NewRun, Renewal, RunRow, Stored
from worker.runtime import answers, driver, effects, journalling, requeueing, segments, service, starting, sweeper
from worker.runtime.driver import Segment
from worker.runtime.host import Host
from worker.runtime.parts import Parts

__all__ = ["PLANTED", "Planted"]

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault: how it is planted, the weather in which it shows, and which invariants may tell."""

    plant: Plant
    climate: Climate
    tells: tuple[str, ...]
    first: int
    within: int


PLANTED: Final[dict[str, Planted]] = {}


def _planted(climate: Climate, *tells: str, first: int = 0, within: int = 40) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = Planted(plant=plant, climate=climate, tells=tells, first=first, within=within)
        return plant

    return add


# --- the store


@_planted(Climate.PEOPLE, "who lacks the active key drives nothing", first=6)
def a_claim_does_not_ask_for_the_active_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "LACKS_ACTIVE", sa.select(key_ring.c.id).where(sa.false()))
    patch.setattr(claims, "_due_statement", claims._due_statement.__wrapped__)
    patch.setattr(claims, "is_behind", lambda *_: False)


@_planted(Climate.STALLS, "one lease's writes", first=100)
def a_commit_does_not_look_at_the_token(patch: pytest.MonkeyPatch) -> None:
    advance = commit._advance

    def careless(connection: sa.Connection, steps: Sequence[Append], now: float, lease_s: float) -> frozenset[int]:
        tokens = {row.uid: row.token for row in connection.execute(sa.select(run.c.uid, run.c.token))}
        trusting = [replace(step, token=tokens[step.run_uid] or step.token) for step in steps]
        return advance(connection, trusting, now, lease_s)

    patch.setattr(commit, "_advance", careless)


@_planted(Climate.PEOPLE, "final is final", first=7)
def a_late_commit_overwrites_a_cancel(patch: pytest.MonkeyPatch) -> None:
    advance = commit._advance

    def careless(connection: sa.Connection, steps: Sequence[Append], now: float, lease_s: float) -> frozenset[int]:
        held = run.c.token.in_([step.token for step in steps])
        revived = sa.update(run).where(held, run.c.status == "cancelled")
        connection.execute(revived.values(status="running", reason=None, finished_at=None))
        return advance(connection, steps, now, lease_s)

    patch.setattr(commit, "_advance", careless)


@_planted(Climate.POLICY, "no act under an old policy", "no send above a ceiling")
def a_commit_does_not_look_at_the_policy(patch: pytest.MonkeyPatch) -> None:
    def careless(connection: sa.Connection, steps: Sequence[Append], *rest: Any, **more: Any) -> list[Commit]:
        return commit.commit_steps(connection, [replace(step, policy=None) for step in steps], *rest, **more)

    patch.setattr(writer, "commit_steps", careless)


@_planted(Climate.STALLS, "one lease's writes", first=100)
def a_claim_takes_what_is_not_due(patch: pytest.MonkeyPatch) -> None:
    def careless(connection: sa.Connection, *terms: Any) -> Any:
        clock = connection.get_execution_options()[CLOCK_OPTION]
        clock.shift_s = 2.0
        try:
            return claim_due(connection, *terms)
        finally:
            clock.shift_s = 0.0

    careless.__name__ = claim_due.__name__
    patch.setattr(store, "claim_due", careless)


@_planted(Climate.PEOPLE, "no lost run")
def an_answered_run_is_not_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        inbox,
        "_DUE",
        sa.update(run)
        .where(run.c.uid == sa.bindparam("of"))
        .values(answered_by=sa.bindparam("by"), updated_at=sa.bindparam("at"), cause="answer"),
    )


@_planted(Climate.PEOPLE, "only the open question is answered", first=4)
def an_answer_to_an_earlier_question_counts(patch: pytest.MonkeyPatch) -> None:
    judged, open_ = inbox._judged, answers.must_be_open

    def careless(found: Any, one: inbox.Given, old: Any, now: float) -> Any:
        asked = None if found is None else found.question
        return judged(found, replace_question(one, asked), old, now)

    def replace_question(one: inbox.Given, question: str | None) -> inbox.Given:
        return inbox.Given(one.run_uid, replace(one.row, question=question or ""), one.audit, one.replace)

    def trusting(row: Any, state: SuspendedRunState | None, question: str, kind: Any) -> Any:
        asked = None if state is None else state.question
        found = open_(row, state, question if asked is None else asked.id, kind)
        return replace(found, id=question)

    patch.setattr(inbox, "_judged", careless)
    patch.setattr(answers, "must_be_open", trusting)


@_planted(Climate.CRASHES, "no due run is left", "every run ends")
def the_sweeper_does_nothing(patch: pytest.MonkeyPatch) -> None:
    async def careless(*_: Any) -> int:
        return 0

    patch.setattr(sweeper, "sweep_once", careless)


@_planted(Climate.PEOPLE, "no due run is left")
def the_sweeper_trusts_its_messages(patch: pytest.MonkeyPatch) -> None:
    """Found as a fault of the product: wake-ups went to where every slot was taken, and a free process never looked."""

    async def careless(parts: Parts, claim: Callable[[], None] | None) -> int:
        due = await parts.store.wakeable(500, parts.figures.sweep_s)
        if due and not await parts.signals.wake(due) and claim is not None:
            claim()
        return len(due)

    patch.setattr(sweeper, "sweep_once", careless)


@_planted(Climate.PEOPLE, "a failed run is continued once", first=3)
def two_who_continue_a_run_at_once_both_do(patch: pytest.MonkeyPatch) -> None:
    """Found as a fault of the product: it looked whether somebody had, and then did."""
    build = requeueing.requeued

    async def careless(parts: Parts, row: RunRow) -> NewRun:
        return replace(await build(parts, row), idempotency=None)

    patch.setattr(service, "requeued", careless)


@_planted(Climate.PEOPLE, "nothing is unreadable", "replay is equal", "every run ends", first=5)
def who_ask_for_a_run_at_once_get_its_entries_twice(patch: pytest.MonkeyPatch) -> None:
    """Found as a fault of the product: reads that share a statement named a run once for each who asked."""
    stored_of = reads.stored_of

    def careless(connection: sa.Connection, uids: Sequence[int]) -> list[Stored]:
        twice = {uid for uid in uids if list(uids).count(uid) > 1}
        found = stored_of(connection, uids)
        return [replace(s, entries=s.entries * 2) if u in twice else s for u, s in zip(uids, found, strict=True)]

    patch.setattr(store, "stored_of", careless)


# --- what a step leaves behind


@_planted(Climate.PEOPLE, "an answer is used once")
def an_answer_is_not_marked_as_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journalling, "_folded", lambda _: None)


@_planted(Climate.MIXED, "exposure holds every send")
def an_exposure_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journalling, "exposures_of", lambda *_, **__: ())


@_planted(Climate.MIXED, "chain")
def the_head_of_the_chain_stays_behind(patch: pytest.MonkeyPatch) -> None:
    build = journalling.append_of
    patch.setattr(driver, "append_of", lambda hold, *rest, **more: replace(build(hold, *rest, **more), head=hold.head))


@_planted(Climate.PEOPLE, "one run per key")
def an_idempotency_key_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    build = starting.new_run
    patch.setattr(starting, "new_run", lambda *given, **more: replace(build(*given, **more), idempotency=None))


# --- the driver


@_planted(
    Climate.POLICY,
    "no send above a ceiling",
    "gated before an answer acts",
    "no send of a disabled owner",
    "the permit is the target",
)
def a_step_under_a_new_policy_keeps_its_facts(patch: pytest.MonkeyPatch) -> None:
    async def careless(self: Segment, events: list[Event]) -> list[Event]:
        snapshot = await self._feed.current()
        return [replace(event, policy=snapshot.version) for event in events]

    patch.setattr(Segment, "_under_new_policy", careless)


@_planted(
    Climate.STALLS,
    "no send that is not committed",
    "no call that is not committed",
    "no call on an old permit",
    "one lease's acts",
    "chain",
    first=3,
)
def a_lost_lease_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    append, renew = store.SqlRunStore.commit, store.SqlRunStore.renew

    async def careless(self: store.SqlRunStore, step: Append) -> Commit:
        done = await append(self, step)
        return replace(done, status=CommitStatus.COMMITTED) if done.status is CommitStatus.LOST else done

    async def hopeful(self: store.SqlRunStore, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        return [replace(renewal, held=True) for renewal in await renew(self, holds, lease_s)]

    patch.setattr(store.SqlRunStore, "commit", careless)
    patch.setattr(store.SqlRunStore, "renew", hopeful)


@_planted(Climate.STALLS, "no send on an old permit", "no call on an old permit")
def nobody_looks_at_the_age_of_a_permit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(effects, "_within_ttl", lambda *_: True)


@_planted(Climate.MIXED, "no send twice")
def a_permit_is_used_again(patch: pytest.MonkeyPatch) -> None:
    send = effects._send

    async def careless(*given: Any) -> effects.Outcome:
        outcome = await send(*given)
        failed = isinstance(outcome, effects.Failed) and outcome.failure is not FailureClass.PERMIT_EXPIRED
        return await send(*given) if failed else outcome

    patch.setattr(effects, "_send", careless)


@_planted(Climate.CRASHES, "one key per call")
def every_attempt_has_a_key_of_its_own(patch: pytest.MonkeyPatch) -> None:
    info = effects._info

    def careless(state: SuspendedRunState, call: Any) -> Any:
        return info(state, replace(call, key=secrets.token_hex(16)))

    patch.setattr(effects, "_info", careless)


@_planted(Climate.STALLS, "no run is taken from the living", first=5)
def nobody_renews_leases(patch: pytest.MonkeyPatch) -> None:
    async def careless(_: Host) -> None:
        return None

    patch.setattr(Host, "_renew", careless)


@_planted(Climate.DATABASE, "every run ends")
def leases_of_dead_tasks_are_renewed(patch: pytest.MonkeyPatch) -> None:
    async def careless(self: Host) -> None:
        holds = [(hold.row.uid, hold.token) for hold, _ in self._held.values()]
        await self._parts.store.renew(holds, self._parts.figures.lease_s)

    patch.setattr(Host, "_renew", careless)
    patch.setattr(Host, "_let_go", lambda *_: None)


# --- the machine


@_planted(Climate.POLICY, "gated before an answer acts")
def a_resume_is_not_gated(patch: pytest.MonkeyPatch) -> None:
    def careless(draft: Any, event: RunResumed) -> None:
        if event.facts is not None:
            transitions._take_facts(draft, event.facts)
        draft.put(blocked=None)
        ask_again(draft)

    cells: dict[Any, Any] = machine.TABLE[Phase.WAITING]
    patch.setitem(cells, RunResumed, careless)


@_planted(Climate.CRASHES, "once means once", first=12)
def recovery_repeats_what_may_happen_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "_once", lambda *_: False)


@_planted(Climate.CRASHES, "once means once", "one key per call", first=12)
def every_recovery_passes_for_a_drain(patch: pytest.MonkeyPatch) -> None:
    cause = segments._cause

    def careless(*given: Any) -> ResumeCause:
        found = cause(*given)
        return ResumeCause.DRAIN if found is ResumeCause.RECOVERY else found

    patch.setattr(segments, "_cause", careless)


@_planted(Climate.POLICY, "no send above a ceiling", "gated before an answer acts", first=9)
def what_is_carried_and_switched_off_does_not_count(patch: pytest.MonkeyPatch) -> None:
    judge = sources._judge

    def careless(facts: Any, carried: Any) -> Any:
        record = sources._find(facts, carried.kind, carried.uid)
        return None if record is not None and not record.active else judge(facts, carried)

    patch.setattr(sources, "_judge", careless)


@_planted(Climate.POLICY, "no write without a person", first=12, within=100)
def rights_are_not_asked_again_when_an_answer_is_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answering, "may_release", lambda *_, **__: True)
    patch.setattr(
        segments,
        "live_actor",
        lambda _, actor: LiveActor(kind=actor.kind, name=actor.name, uid=actor.uid, enabled=True, admin=True),
    )
