"""Settling: what follows from where the calls of a turn stand. Runs after every event that touches a call.

1. Nothing of a turn executes before all its questions are answered: held calls become ready only when no preview, ask,
   need_input or unknown is left. 2. Ready calls are judged once more under the live facts and released. 3. While one is
   open the run works. 4. Else one question at a time: unknown before ask before need_input. 5. All done: the results go
   into the transcript and the run sends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from codec.commands import CallTool, Preview, Suspend
from codec.suspended import Call, InputRequest, Question
from codec.transcript import Message
from codec.vocabulary import CallStatus, Phase, QuestionKind, Role
from worker.core.calls import check, failed, refreshed
from worker.core.keys import derived_id
from worker.core.offering import tool_named
from worker.core.sending import send
from worker.core.work import Draft

__all__ = ["ask_again", "change_call", "settle"]

_UNSETTLED: Final = (CallStatus.PREVIEW, CallStatus.ASK, CallStatus.NEED_INPUT, CallStatus.UNKNOWN)
_QUESTIONS: Final = (
    (CallStatus.UNKNOWN, QuestionKind.OUTCOME),
    (CallStatus.ASK, QuestionKind.APPROVAL),
    (CallStatus.NEED_INPUT, QuestionKind.INPUT),
)


def change_call(draft: Draft, call: Call) -> None:
    """Put a changed call in the place of the old one."""
    draft.put(calls=tuple(call if c.id == call.id else c for c in draft.state.calls))


def settle(draft: Draft) -> None:
    """Settle the calls of the turn (the rules of the module docstring). Ends working, waiting, sending or done."""
    _refresh(draft)
    _release(draft)
    statuses = {call.status for call in draft.state.calls}
    if CallStatus.OPEN in statuses or CallStatus.PREVIEW in statuses:
        draft.put(phase=Phase.TOOLS, question=None, blocked=None)
        return
    for status, kind in _QUESTIONS:
        if status in statuses:
            _ask(draft, status, kind)
            return
    _close_turn(draft)
    send(draft)


def ask_again(draft: Draft) -> None:
    """Suspend on the question that is open already."""
    state, question = draft.state, draft.state.question
    if question is None:  # pragma: no cover - a waiting state always has one; the reader refuses any other
        raise AssertionError("waiting without a question")
    draft.commands.append(
        Suspend(
            kind=question.kind,
            question=question.id,
            number=question.number,
            blocked=None if state.blocked is None else state.blocked.reason,
            ttl_s=0,
        )
    )


def _refresh(draft: Draft) -> None:
    for call in draft.state.calls:
        if call.status in (CallStatus.DONE, CallStatus.OPEN, CallStatus.UNKNOWN):
            continue
        _check_again(draft, call)
    before = {call.id: call.status for call in draft.state.calls}
    for call in draft.state.calls:
        changed = refreshed(draft.state.facts, call)
        if changed != call:
            change_call(draft, changed)
        if changed.status is CallStatus.PREVIEW and before[call.id] is not CallStatus.PREVIEW:
            draft.commands.append(Preview(call=call.id, tool=call.name))


def _check_again(draft: Draft, call: Call) -> None:
    checked = check(draft.state, call)
    draft.denied(checked.denial)
    if checked.problem is not None:
        if checked.decision is not None:
            draft.decided(checked.decision)
        change_call(draft, failed(call, checked.problem))


def _release(draft: Draft) -> None:
    unsettled = any(call.status in _UNSETTLED for call in draft.state.calls)
    ready = {CallStatus.READY} if unsettled else {CallStatus.READY, CallStatus.HELD}
    for call in draft.state.calls:
        if call.status in ready:
            _open(draft, call)


def _open(draft: Draft, call: Call) -> None:
    tool = tool_named(draft.state.facts, call.name)
    checked = check(draft.state, call)
    if tool is None or checked.problem is not None:  # `_refresh` has just answered those
        return
    counters = draft.state.counters
    if tool.remote:
        if counters.remote_calls >= draft.state.limits.remote_calls:
            change_call(draft, failed(call, "the budget of remote calls is used up."))
            return
        draft.count(remote_calls=counters.remote_calls + 1)
    decision = None if checked.decision is None else draft.decided(checked.decision)
    change_call(draft, msgspec.structs.replace(call, status=CallStatus.OPEN, executed=checked.arguments))
    draft.commands.append(
        CallTool(
            call=call.id,
            tool=call.name,
            effect=call.effect,
            key=call.key,
            timeout_ms=tool.timeout_ms,
            decision=decision,
        )
    )


def _ask(draft: Draft, status: CallStatus, kind: QuestionKind) -> None:
    state = draft.state
    asked = [call for call in state.calls if call.status is status]
    if kind is not QuestionKind.APPROVAL:
        asked = asked[:1]
    number = state.counters.questions + 1
    question = Question(
        number=number,
        id=derived_id(draft.event.nonce, "question"),
        kind=kind,
        calls=tuple(call.id for call in asked),
        input=_input_of(draft, asked[0]) if kind is QuestionKind.INPUT else None,
    )
    draft.count(questions=number)
    draft.put(phase=Phase.WAITING, question=question, blocked=None, send=None)
    configuration = state.facts.configuration
    ttl = 0 if configuration is None else configuration.approval_ttl_s
    draft.commands.append(Suspend(kind=kind, question=question.id, number=number, ttl_s=ttl))


def _input_of(draft: Draft, call: Call) -> InputRequest:
    tool = tool_named(draft.state.facts, call.name)
    schema = "{}" if tool is None or tool.input_schema is None else tool.input_schema
    return InputRequest(tool=call.name, schema=schema)


def _close_turn(draft: Draft) -> None:
    results = tuple(
        Message(role=Role.TOOL, content=call.result or "", tool_call_id=call.id) for call in draft.state.calls
    )
    draft.put(transcript=draft.state.transcript + results, calls=(), question=None, blocked=None)
