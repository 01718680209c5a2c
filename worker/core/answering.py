"""Transitions of a run that waits: what people answer. Only the asked kind of answer to the open question counts."""

from __future__ import annotations

import msgspec

from codec.errors import CodecError
from codec.events import CallVerdict, DecisionGiven, InputGiven, OutcomeGiven
from codec.suspended import Call
from codec.text import parse_object
from codec.vocabulary import CallStatus, QuestionKind, TerminationReason
from worker.core.calls import failed
from worker.core.people import may_decide, may_release
from worker.core.schemas import is_valid
from worker.core.settling import change_call, settle
from worker.core.work import Draft

__all__ = ["decision_given", "input_given", "outcome_given"]


def decision_given(draft: Draft, event: DecisionGiven) -> None:
    """Fold a decision about every gated call of the turn.

    What the decider may no longer release is asked again as a new question; a denial needs only the right to decide.
    """
    if not _asked(draft, QuestionKind.APPROVAL, event.question):
        return
    asked = () if draft.state.question is None else draft.state.question.calls
    for call in draft.state.calls:
        verdict = event.verdicts.get(call.id)
        if call.id in asked and call.status is CallStatus.ASK and verdict is not None:
            _decide(draft, event, call, verdict)
    settle(draft)


def _decide(draft: Draft, event: DecisionGiven, call: Call, verdict: CallVerdict) -> None:
    if not verdict.approve:
        if may_decide(event.decider):
            denied = msgspec.structs.replace(
                call, decided=True, denied=True, decided_by=event.decider.name, reason=verdict.reason
            )
            change_call(draft, failed(denied, _denial(verdict.reason)))
        return
    if may_release(draft.state, call, event.decider):
        approved = msgspec.structs.replace(
            call,
            status=CallStatus.HELD,
            decided=True,
            decided_by=event.decider.name,
            approved=verdict.arguments,
        )
        change_call(draft, approved)


def _denial(reason: str | None) -> str:
    told = "a person denied this call. It was not executed."
    # A person's words are marked as such: the model must not take them for the operator's instructions.
    return told if not reason else f"{told} The person wrote (untrusted): {reason}"


def input_given(draft: Draft, event: InputGiven) -> None:
    """Fold what a person supplied for one call; if it does not fit any more, or the person may not, ask again."""
    if not _asked(draft, QuestionKind.INPUT, event.question):
        return
    call = _questioned(draft, CallStatus.NEED_INPUT)
    question = draft.state.question
    asked = None if question is None else question.input
    fits = asked is not None and _fits(asked.schema, event.data)
    if call is not None and fits and may_release(draft.state, call, event.decider):
        by = event.decider.name
        change_call(draft, msgspec.structs.replace(call, status=CallStatus.HELD, supplied=event.data, decided_by=by))
    settle(draft)


def _fits(schema: str, data: str) -> bool:
    try:
        return is_valid(schema, parse_object(data, "input"))
    except CodecError:
        return False


def outcome_given(draft: Draft, event: OutcomeGiven) -> None:
    """Fold what became of a call of unknown outcome: it happened, it did not and shall run, or the run stops.

    Only running it asks the tool's policy: a tool that was switched off after a crash must not keep the run for ever.
    """
    if not _asked(draft, QuestionKind.OUTCOME, event.question):
        return
    call = _questioned(draft, CallStatus.UNKNOWN)
    executes = event.happened is None and event.run
    released = call is not None and may_release(draft.state, call, event.decider, executes=executes)
    if call is not None and call.id == event.call and released:
        if event.happened is not None:
            settled = msgspec.structs.replace(call, status=CallStatus.DONE, result=event.happened)
        elif event.run:
            settled = msgspec.structs.replace(call, status=CallStatus.HELD, decided=True, executed=None)
        else:
            draft.finish(TerminationReason.OUTCOME_UNKNOWN)
            return
        change_call(draft, msgspec.structs.replace(settled, decided_by=event.decider.name))
    settle(draft)


def _asked(draft: Draft, kind: QuestionKind, question: str) -> bool:
    current = draft.state.question
    if current is None or current.kind is not kind or current.id != question or draft.state.blocked is not None:
        draft.late()
        return False
    return True


def _questioned(draft: Draft, status: CallStatus) -> Call | None:
    question = draft.state.question
    named = () if question is None else question.calls
    return next((c for c in draft.state.calls if c.id in named and c.status is status), None)
