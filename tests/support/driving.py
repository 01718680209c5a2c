"""A run that a test drives by hand: the machine, its last step, and short words for what happens to it."""

from __future__ import annotations

from typing import Any

import msgspec

from codec.actor import LiveActor
from codec.commands import CallModel, CallTool, Command, Finish, Preview, Suspend
from codec.events import (
    CallVerdict,
    DecisionGiven,
    Event,
    InputGiven,
    ModelFailed,
    ModelReplied,
    OutcomeGiven,
    PolicyReplaced,
    Previewed,
    RunResumed,
    ToolFailed,
    ToolReturned,
)
from codec.facts import Facts
from codec.request import AgentRunRequest
from codec.suspended import Call, Question, SuspendedRunState
from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import FailureClass, FinishReason, ResumeCause
from tests.support.builders import nonce, started
from tests.support.walking import DORA
from worker.core.machine import step
from worker.core.work import Step

Wanted = tuple[str, str] | tuple[str, str, str]
"""A call as a model writes it: tool, arguments and, when it is named, its id."""


class Driven:
    """One run, from its start on."""

    def __init__(self, facts: Facts, request: AgentRunRequest | None = None, **changes: Any) -> None:
        self.number = 1
        self.steps: list[Step] = [step(None, started(facts, request, **changes))]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def state(self) -> SuspendedRunState:
        return self.last.state

    @property
    def question(self) -> Question:
        assert self.state.question is not None
        return self.state.question

    @property
    def send(self) -> CallModel:
        return next(c for c in self.last.commands if isinstance(c, CallModel))

    @property
    def calls(self) -> list[str]:
        """Names of the tools that the last step calls."""
        return [c.tool for c in self.last.commands if isinstance(c, CallTool)]

    @property
    def results(self) -> list[str]:
        """Contents of the tool messages so far."""
        return [m.content for m in self.state.transcript if m.tool_call_id is not None]

    def call(self, index: int = 0) -> Call:
        return self.state.calls[index]

    def words(self) -> list[str]:
        """Name the last step's commands."""
        return [_word(command) for command in self.last.commands]

    def stamp(self) -> dict[str, Any]:
        self.number += 1
        return {"nonce": nonce(self.number), "elapsed_ms": self.number, "policy": 1}

    def take(self, event: Event) -> Driven:
        self.steps.append(step(self.state, event))
        return self

    def reply(self, *wanted: Wanted, finish: FinishReason = FinishReason.STOP, **changes: Any) -> Driven:
        calls = tuple(RawCall(id="".join(w[2:]), name=w[0], arguments=w[1]) for w in wanted)
        reply = ModelReply(text="said", calls=calls, finish=finish, usage=Usage(input_tokens=10, output_tokens=5))
        send = "none" if self.state.send is None else self.state.send.id
        return self.take(ModelReplied(**self.stamp(), send=send, reply=msgspec.structs.replace(reply, **changes)))

    def fail_send(self, failure: FailureClass = FailureClass.CONNECTION) -> Driven:
        assert self.state.send is not None
        return self.take(ModelFailed(**self.stamp(), send=self.state.send.id, failure=failure))

    def returns(self, index: int = 0, result: str = "r") -> Driven:
        return self.take(ToolReturned(**self.stamp(), call=self.call(index).id, result=result))

    def fails(self, index: int = 0, failure: FailureClass = FailureClass.RAISED) -> Driven:
        return self.take(ToolFailed(**self.stamp(), call=self.call(index).id, failure=failure))

    def preview(self, index: int = 0) -> Driven:
        return self.take(Previewed(**self.stamp(), call=self.call(index).id, lines=("would",)))

    def resume(self, cause: ResumeCause = ResumeCause.ANSWER, facts: Facts | None = None) -> Driven:
        return self.take(RunResumed(**self.stamp(), cause=cause, facts=facts))

    def crash(self, facts: Facts | None = None) -> Driven:
        return self.resume(ResumeCause.RECOVERY, facts)

    def policy(self, facts: Facts) -> Driven:
        return self.take(PolicyReplaced(**self.stamp(), facts=facts))

    def decide(self, decider: LiveActor = DORA, **verdicts: CallVerdict | bool) -> Driven:
        """Decide by call id; without names, approve everything that is asked."""
        given = {name: v if isinstance(v, CallVerdict) else CallVerdict(approve=v) for name, v in verdicts.items()}
        if not given:
            given = dict.fromkeys(self.question.calls, CallVerdict(approve=True))
        question = self.question.id
        return self.take(DecisionGiven(**self.stamp(), question=question, decider=decider, verdicts=given))

    def supply(self, data: str = '{"answer":"a"}', decider: LiveActor = DORA) -> Driven:
        return self.take(InputGiven(**self.stamp(), question=self.question.id, decider=decider, data=data))

    def settle(self, decider: LiveActor = DORA, **word: Any) -> Driven:
        call, question = self.question.calls[0], self.question.id
        return self.take(OutcomeGiven(**self.stamp(), question=question, decider=decider, call=call, **word))


def _word(command: Command) -> str:
    match command:
        case CallModel():
            return f"send to {command.permit.target.identifier}"
        case CallTool():
            return f"call {command.tool}"
        case Preview():
            return f"preview {command.tool}"
        case Suspend():
            asks = command.kind or "retry"
            return f"wait for {asks}" if command.blocked is None else f"blocked by {command.blocked}"
        case Finish():
            return f"end {command.reason}"
