"""Answers of people: checked against the open question and live rights, sealed, and put into the inbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from codec.actor import Actor, LiveActor
from codec.answers import Answer, OutcomeWord
from codec.errors import CodecError
from codec.events import CallVerdict
from codec.facts import Facts
from codec.suspended import Call, Question, SuspendedRunState
from codec.text import clean_text, dump_json, parse_object
from codec.vocabulary import CallStatus, QuestionKind
from worker.core.calls import check
from worker.core.offering import policy_denial
from worker.core.people import reading_class, release_problem
from worker.core.schemas import is_valid
from worker.ports.records import RunRow
from worker.runtime.errors import ConflictError, ForbiddenError, InvalidError

__all__ = ["Verdicts", "answer_decision", "answer_input", "answer_outcome", "must_be_open", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What a decider said: `default` fills the gated calls that `calls` does not name; None leaves none to fill.

    Shape: a call's verdict with `arguments` approves edited arguments in place of the proposed ones.
    """

    default: bool | None
    calls: Mapping[str, CallVerdict]
    reason: str | None = None


def must_be_open(row: RunRow, state: SuspendedRunState | None, question: str, kind: QuestionKind) -> Question:
    """Give the open question when it is the one that was shown and of this kind. Errors: `ConflictError`."""
    current = None if state is None else state.question
    if current is None or row.question is None:
        raise ConflictError("not_waiting", "the run does not wait for an answer", uuid=row.uuid)
    if current.id != question:
        raise ConflictError("stale_question", "that question is no longer open; look again", uuid=row.uuid)
    if current.kind is not kind:
        raise ConflictError(
            "wrong_question", f"the run asks for {current.kind.value}, not for {kind.value}", uuid=row.uuid
        )
    return current


def answer_decision(state: SuspendedRunState, question: Question, said: Verdicts, decider: Actor, via: str) -> Answer:
    """Build the one answer that covers every gated call.

    Errors: `ConflictError` when a named call is not pending, `InvalidError` when a call is left without a verdict or
    edited arguments do not fit; nothing is decided then.
    """
    unknown = [name for name in said.calls if name not in question.calls]
    if unknown:
        raise ConflictError("not_pending", "a named call is not pending; nothing was decided", uuid=state.run)
    verdicts: dict[str, CallVerdict] = {}
    for name in question.calls:
        verdict = said.calls.get(name)
        if verdict is None:
            if said.default is None:
                raise InvalidError("verdict_missing", "not every gated call has a verdict", paths=("$.verdict",))
            verdict = CallVerdict(approve=said.default, reason=said.reason)
        verdicts[name] = _clean(state, name, verdict)
    return Answer(question=question.id, decider=decider, via=via, verdicts=verdicts)


def _clean(state: SuspendedRunState, name: str, verdict: CallVerdict) -> CallVerdict:
    try:
        reason = None if verdict.reason is None else clean_text(verdict.reason, "reason")
        if verdict.arguments is None:
            return CallVerdict(approve=verdict.approve, reason=reason)
        if not verdict.approve:
            raise InvalidError(
                "invalid_edit", "a denied call takes no edited arguments", paths=(f"$.calls.{name}",), uuid=state.run
            )
        edited = dump_json(parse_object(verdict.arguments, "arguments"))
    except CodecError as error:
        raise InvalidError("invalid_edit", str(error), paths=(f"$.calls.{name}",)) from None
    call = next(c for c in state.calls if c.id == name)
    checked = check(state, _edited(call, edited))
    if checked.problem is not None:
        raise InvalidError(
            "invalid_edit", f"the edited call would not be executed: {checked.problem}", paths=(f"$.calls.{name}",)
        )
    return CallVerdict(approve=True, reason=reason, arguments=edited)


def _edited(call: Call, arguments: str) -> Call:
    return Call(**{**{f: getattr(call, f) for f in call.__struct_fields__}, "approved": arguments})


def answer_input(state: SuspendedRunState, question: Question, data: str, decider: Actor, via: str) -> Answer:
    """Build the answer to an input question. Errors: `InvalidError` when the data does not fit the schema."""
    asked = question.input
    if asked is None:
        raise ConflictError("not_answerable", "the question's schema cannot be read", uuid=state.run)
    try:
        value: Any = parse_object(data, "data")
    except CodecError as error:
        raise InvalidError("invalid_input", str(error), paths=(error.path,)) from None
    if not is_valid(asked.schema, value):
        raise InvalidError("invalid_input", "the data does not fit what was asked for", paths=("$.data",))
    return Answer(question=question.id, decider=decider, via=via, data=dump_json(value))


def answer_outcome(state: SuspendedRunState, question: Question, word: OutcomeWord, decider: Actor, via: str) -> Answer:
    """Build the answer to an outcome question. Errors: `ConflictError` when another call is asked about."""
    if word.call not in question.calls:
        raise ConflictError("not_pending", "that call's outcome is not asked for", uuid=state.run)
    if word.run and word.happened is not None:
        raise InvalidError("invalid_outcome", "a call either happened or is to be run", paths=("$.outcome",))
    try:
        happened = None if word.happened is None else clean_text(word.happened, "outcome")
    except CodecError as error:
        raise InvalidError("invalid_outcome", str(error), paths=(error.path,)) from None
    cleaned = OutcomeWord(call=word.call, happened=happened, run=word.run)
    return Answer(question=question.id, decider=decider, via=via, outcome=cleaned)


def released(facts: Facts, state: SuspendedRunState, answer: Answer, decider: LiveActor) -> None:
    """Check that the decider may let through every call that this answer releases. A denial needs no such right.

    Errors: `ForbiddenError` with the reason as its code.
    """
    high_water = reading_class(msgspec.structs.replace(state, facts=facts))
    for call in _released_calls(state, answer):
        executes = _may_execute(facts, call, answer)
        problem = release_problem(facts, state.owner, call, decider, high_water, executes=executes)
        if problem is not None:
            raise ForbiddenError(problem, _explain(problem, decider, call), uuid=state.run)


def _may_execute(facts: Facts, call: Call, answer: Answer) -> bool:
    """Whether this answer can let the call through, so that the tool policy must agree with its giver.

    Not when a person says what happened, or stops the run: a tool switched off since must not prevent that. Nor when
    the run itself may not call the tool any more: the answer is kept, and the call is answered with an error.
    """
    if answer.outcome is not None:
        return answer.outcome.run
    denial = policy_denial(facts, call.name, facts.owner)
    return denial is None or denial.observed


def _released_calls(state: SuspendedRunState, answer: Answer) -> list[Call]:
    if answer.verdicts is not None:
        named = {name for name, verdict in answer.verdicts.items() if verdict.approve}
        return [c for c in state.calls if c.id in named and c.status is CallStatus.ASK]
    asked = () if state.question is None else state.question.calls
    return [c for c in state.calls if c.id in asked]


def _explain(problem: str, decider: LiveActor, call: Call) -> str:
    told = {
        "second_approver": "the configuration wants a second person: who started the run may deny, not release",
        "service_account": "a service account may not release writes or supply input",
        "not_cleared": "who may not read the call in full may deny it, not release it",
    }
    return f"{decider.name} may not release {call.name}: {told.get(problem, problem)}"
