"""What becomes of a send: its answer, its failure, and the permits that nobody could use in time."""

from __future__ import annotations

from typing import Final

from codec.commands import Suspend
from codec.events import ModelFailed, ModelReplied
from codec.transcript import Message, ModelReply, ToolCall
from codec.vocabulary import FailureClass, Phase, Role, TerminationReason
from worker.core.calls import calls_of_reply
from worker.core.gate import route_of_hop
from worker.core.sending import send
from worker.core.settling import settle
from worker.core.window import recalibrated
from worker.core.work import Draft

__all__ = ["PERMIT_CAP", "expired_again", "model_failed", "model_replied", "reply_after_end"]

PERMIT_CAP: Final = 10
"""Permits in a row that were not performed in time; then the send or call counts as failed. A process that is too busy
to act within two seconds ten times over must not fill the journal."""


def model_replied(draft: Draft, event: ModelReplied) -> None:
    """Take a whole answer: an end, or a turn of calls."""
    state, reply = draft.state, event.reply
    if state.send is None or state.send.id != event.send:
        draft.late()
        return
    counters = state.counters
    _count_usage(draft, reply)
    draft.count(rounds=counters.rounds + (0 if state.synthesis else 1), overdue=0)
    calls = () if state.synthesis else calls_of_reply(state, reply)
    said = tuple(ToolCall(id=c.id, name=c.name, arguments=c.proposed) for c in calls)
    message = Message(role=Role.ASSISTANT, content=reply.text, tool_calls=said, signed=reply.signed)
    draft.put(
        transcript=(*state.transcript, message),
        calibration=recalibrated(state.calibration, state.send.estimate, reply.usage.input_tokens),
        send=None,
        hop=0,
        retries=0,
        calls=calls,
    )
    if calls:
        draft.count(turns=counters.turns + 1)
        settle(draft)
    else:
        draft.finish(TerminationReason.MAX_ITERATIONS if state.synthesis else TerminationReason.COMPLETED)


def reply_after_end(draft: Draft, event: ModelReplied) -> None:
    """Take an answer that came after a cancel: it changes nothing any more, but it was used and is paid for."""
    _count_usage(draft, event.reply)


def _count_usage(draft: Draft, reply: ModelReply) -> None:
    counters = draft.state.counters
    draft.count(
        input_tokens=counters.input_tokens + max(0, reply.usage.input_tokens),
        output_tokens=counters.output_tokens + max(0, reply.usage.output_tokens),
    )


def model_failed(draft: Draft, event: ModelFailed) -> None:
    """Meet a failed send: again under a new permit, at the next hop, parked for later, or the end."""
    state = draft.state
    if state.send is None or state.send.id != event.send:
        draft.late()
        return
    draft.put(send=None)
    if expired_again(draft, event.failure):
        send(draft)
    elif not (event.failure.retryable or event.failure is FailureClass.PERMIT_EXPIRED):
        draft.finish(TerminationReason.NOT_RETRYABLE)
    elif (hop := _next_hop(draft)) is not None:
        draft.put(hop=hop)
        send(draft)
    elif state.retries < state.limits.retries:
        draft.put(phase=Phase.PARKED, hop=0, retries=state.retries + 1)
        draft.commands.append(Suspend(parked=state.retries + 1, not_before_ms=event.not_before_ms))
    else:
        draft.finish(TerminationReason.RETRIES_EXHAUSTED)


def expired_again(draft: Draft, failure: FailureClass) -> bool:
    """Count permits that expired in a row, and tell whether this one is simply given anew."""
    overdue = draft.state.counters.overdue + 1 if failure is FailureClass.PERMIT_EXPIRED else 0
    within = 0 < overdue <= PERMIT_CAP
    draft.count(overdue=overdue if within else 0)
    return within


def _next_hop(draft: Draft) -> int | None:
    configuration = draft.state.facts.configuration
    chain = () if configuration is None else configuration.fallbacks
    for hop in range(draft.state.hop + 1, len(chain) + 1):
        route = route_of_hop(draft.state.facts, hop)
        if route is not None and route.provider is not None:
            return hop
    return None
