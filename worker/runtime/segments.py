"""Segments: from a claimed row to a run that is driven, whatever woke it."""

from __future__ import annotations

import msgspec

from codec.answers import Answer
from codec.errors import SchemaTooNewError
from codec.events import DecisionGiven, Event, Expired, InputGiven, OutcomeGiven, RunResumed, RunStarted
from codec.request import AgentRunRequest
from codec.suspended import SuspendedRunState
from codec.vocabulary import BlockedReason, Phase, QuestionKind, ResumeCause, RunStatus, TerminationReason
from worker.core.policy import live_actor
from worker.core.transitions import CRASH_CAP
from worker.ports.records import Append, Claimed, CommitStatus, Due
from worker.ports.sealing import SealBrokenError
from worker.runtime.driver import Follow, Segment, live_facts, stamp
from worker.runtime.feed import PolicyFeed
from worker.runtime.hold import Hold
from worker.runtime.journalling import entry_link, entry_row
from worker.runtime.load import Loaded, UnreadableError, load_held, open_answer
from worker.runtime.parts import Parts
from worker.runtime.slots import ProviderSlots
from worker.runtime.suspects import PARKED_S, SUSPECT, Turn

__all__ = ["hold_of", "run_segment"]


def hold_of(parts: Parts, claimed: Claimed) -> Hold:
    """Take a claimed row in hand. Errors: `SealBrokenError` when its key was tampered with."""
    row = claimed.row
    now = parts.clock.monotonic()
    answered = row.cause == ResumeCause.ANSWER and row.answered_by is not None
    return Hold(
        row=row,
        token=claimed.token,
        key=parts.sealer.unwrap(row.wrapped_key, row.key_id),
        actor=row.answered_by if answered and row.answered_by else row.owner,
        via=row.origin,
        seq=row.seq,
        head=row.head,
        began_at=now,
        proved_at=now,
    )


async def run_segment(
    parts: Parts, feed: PolicyFeed, slots: ProviderSlots, claimed: Claimed, turn: Turn, hold: Hold | None = None
) -> None:
    """Drive a claimed run until it rests or is lost. A suspect without a turn is given back for a while.

    What cannot be read is left in place: a run that waits for a person is shown as `blocked: corrupt`, any other fails.
    A document of a newer build is left too: the run is put off for a lease, and a worker that knows it goes on.
    """
    in_vain = claimed.row.in_vain - 1
    if in_vain > CRASH_CAP:
        # What dies while it is composed or read leaves no entry that the machine could count.
        parts.log("run.never_begins", {"run": claimed.row.uuid, "in_vain": in_vain})
        await _set_aside(parts, claimed)
        return
    if not await _has_turn(parts, claimed, turn, in_vain):
        return
    try:
        held = hold_of(parts, claimed) if hold is None else hold
        loaded = await load_held(parts, held.row, held.key)
        held.state, held.drained, held.turn = loaded.state, loaded.drained, turn
        held.before_ms = 0 if held.state is None else held.state.counters.elapsed_ms
        first, follow = await _entrance(parts, feed, claimed, held, loaded)
    except SchemaTooNewError as error:
        parts.log("run.too_new", {"run": claimed.row.uuid, "version": error.version})
        await parts.store.give_back(claimed.row, claimed.token, parts.figures.lease_s)
    except (UnreadableError, SealBrokenError) as error:
        if await _set_aside(parts, claimed):
            parts.log("run.unreadable", {"run": claimed.row.uuid, "error": str(error)})
        else:
            # Whoever was held up since the claim reads what somebody else wrote since, which does not fit his row.
            parts.log("lease.lost", {"run": claimed.row.uuid})
    else:
        await Segment(parts, feed, slots, held).drive(first, follow)


async def _has_turn(parts: Parts, claimed: Claimed, turn: Turn, in_vain: int) -> bool:
    """Take the turn of a run with so many segments in vain, or give the run back until there may be one.

    One that was cancelled or lost meanwhile cannot be given back: its segment goes on, finds that out, and closes it.
    """
    row = claimed.row
    if turn.take(in_vain):
        if in_vain >= SUSPECT:  # told of those that are driven only: among them is whoever the process may die of
            parts.log("run.suspected", {"run": row.uuid, "in_vain": in_vain})
        return True
    return not await parts.store.give_back(row, claimed.token, PARKED_S)


async def _entrance(
    parts: Parts, feed: PolicyFeed, claimed: Claimed, hold: Hold, loaded: Loaded
) -> tuple[Event, Follow | None]:
    state = hold.state
    if state is None:
        return await _start(parts, feed, hold, loaded.request), None
    follow: Follow | None = None
    if state.phase is Phase.WAITING and claimed.expired:
        return Expired(**stamp(parts, hold, state.policy)), None
    if state.phase is Phase.WAITING:
        answer = open_answer(parts, hold.row, hold.key, state, loaded.answer)
        follow = None if answer is None else _fold_answer(parts, feed, hold, answer)
    snapshot, facts = await live_facts(feed, state)
    same = facts == state.facts
    if same:
        # Many runs of a process then share one object, and what was computed of it.
        hold.state = msgspec.structs.replace(state, facts=facts)
    event = RunResumed(
        **stamp(parts, hold, snapshot.version), cause=_cause(claimed, hold), facts=None if same else facts
    )
    return event, follow


async def _start(parts: Parts, feed: PolicyFeed, hold: Hold, request: AgentRunRequest | None) -> RunStarted:
    if request is None:
        raise AssertionError("a run that was not composed yet was loaded with its request")
    composed = await feed.compose(request)
    return RunStarted(
        **stamp(parts, hold, composed.policy),
        run=hold.row.uuid,
        request=request,
        texts=composed.texts,
        facts=composed.facts,
        retries=len(parts.figures.retry_s),
    )


def _cause(claimed: Claimed, hold: Hold) -> ResumeCause:
    if hold.drained:
        return ResumeCause.DRAIN
    # Every append clears the row's cause. If it is still there, no segment has added anything since it was set, so the
    # reason to go on is the same, even when a segment died in between.
    try:
        cause = ResumeCause(claimed.row.cause or ResumeCause.RECOVERY)
    except ValueError:
        return ResumeCause.RECOVERY
    # That nothing was performed is believed of the sealed snapshot only, never of a word in the row.
    return ResumeCause.RECOVERY if cause is ResumeCause.DRAIN else cause


def _fold_answer(parts: Parts, feed: PolicyFeed, hold: Hold, answer: Answer) -> Follow:
    def follow(state: SuspendedRunState, policy: int) -> Event | None:
        if state.phase is not Phase.WAITING or state.blocked is not None or state.question is None:
            return None
        decider = live_actor(feed.held, answer.decider)
        stamped = stamp(parts, hold, policy)
        match state.question.kind:
            case QuestionKind.APPROVAL if answer.verdicts is not None:
                return DecisionGiven(**stamped, question=answer.question, decider=decider, verdicts=answer.verdicts)
            case QuestionKind.INPUT if answer.data is not None:
                return InputGiven(**stamped, question=answer.question, decider=decider, data=answer.data)
            case QuestionKind.OUTCOME if answer.outcome is not None:
                word = answer.outcome
                return OutcomeGiven(
                    **stamped,
                    question=answer.question,
                    decider=decider,
                    call=word.call,
                    happened=word.happened,
                    run=word.run,
                )
            case _:
                return None

    return follow


async def _set_aside(parts: Parts, claimed: Claimed) -> bool:
    """Put away what cannot be driven. False when the run is no longer ours."""
    row = claimed.row
    if row.question is not None and not claimed.expired:
        blocked = f'{{"reason":"{BlockedReason.CORRUPT.value}","configuration":null}}'
        return await parts.store.block(row.uid, claimed.token, blocked)
    entry = entry_row("state_corrupted", seq=row.seq + 1, segment=row.segment, policy=0, prev=row.head, by="regate")
    commit = await parts.store.commit(
        Append(
            run_uid=row.uid,
            token=claimed.token,
            first=row.seq + 1,
            entries=(entry,),
            head=entry_link(row.uuid, claimed.token, entry),
            policy=None,
            status=RunStatus.FAILED,
            due=Due.NEVER,
            release=True,
            reason=TerminationReason.CORRUPT,
            rounds=row.rounds,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            high_water=row.high_water,
        )
    )
    return commit.status is CommitStatus.COMMITTED
