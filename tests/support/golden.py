"""The golden documents of the current version: one of each kind, made by the machine from one small story."""

from __future__ import annotations

from typing import Any

import msgspec

from codec.actor import Actor
from codec.answers import Answer, OutcomeWord
from codec.events import CallVerdict, DecisionGiven, Event, InputGiven, ModelReplied, Previewed, RunResumed, ToolFailed
from codec.facts import Facts
from codec.journal import ENTRY_VERSION, Entry
from codec.request import AgentRunRequest, Caller, ModelOptions, RunAugmentation
from codec.request_codec import AgentRunRequestCodec
from codec.suspended import SuspendedRunState
from codec.transcript import Message, ModelReply, RawCall, Usage
from codec.vocabulary import ActorKind, DeclaredClass, FailureClass, ResumeCause, Role, SourceKind, TrustZone
from tests.support.builders import DECIDER, facts, fallback, nonce, provider, source, started, texts
from worker.core.machine import step
from worker.core.replay import entry_of

OWNER = Actor(kind=ActorKind.USER, name="olga", uid=3, grants=("runs:start", "sources:force"))


def documents() -> dict[str, bytes]:
    """Give each document's file name and its bytes. Law: the same bytes each time."""
    approval, input_, outcome = Story("shown"), Story("ask"), Story("write")
    approval.take(Previewed(**approval.stamp(), call="call_1_0", lines=("would write",)))
    outcome.approve()
    outcome.take(ToolFailed(**outcome.stamp(), call="call_1_0", failure=FailureClass.TIMEOUT))
    found = {
        "request.json": AgentRunRequestCodec.dehydrate(asked()),
        "state_approval.json": approval.state.encode(),
        "state_input.json": input_.state.encode(),
        "state_outcome.json": outcome.state.encode(),
    }
    refused = Story("write")
    refused.resume(policy(TrustZone.EXTERNAL_GLOBAL))
    input_.supply()
    stories = {"approval": approval, "outcome": outcome, "refused": refused, "input": input_}
    for name, story in stories.items():
        for entry in story.entries:
            found[f"entry_{name}_{type(entry.event).__name__.lower()}.json"] = entry.encode()
    for name, answer in answers().items():
        found[f"answer_{name}.json"] = answer.encode()
    return found


def asked() -> AgentRunRequest:
    """Give a request that uses everything."""
    return AgentRunRequest(
        configuration=1,
        messages=(Message(role=Role.USER, content="Order 7 arrived broken."),),
        options=ModelOptions(temperature=0.25, max_tokens=512),
        max_iterations=5,
        augmentation=RunAugmentation(forced_snippet_uids=(41, 7), forced_skill_uids=(77,)),
        actor=OWNER,
        planned_cost=0.5,
        idempotency_key="order-7",
        caller=Caller(extension="shop", operation="refund"),
        tags={"team": "blue"},
    )


def policy(zone: TrustZone = TrustZone.LOCAL) -> Facts:
    """Give the facts of the story; 41 is declared the strictest class, 7 is gone."""
    own = source(1, DeclaredClass.PUBLIC_CONTENT, identifier="tone")
    forced = source(41, DeclaredClass.SECRET_ADJACENT, identifier="incident-report")
    skill = source(77, DeclaredClass.EDITOR_CONTENT, kind=SourceKind.SKILL, identifier="refunds")
    return facts(
        providers=(provider(1, zone), provider(2, identifier="spare")),
        fallbacks=(fallback("spare", 2),),
        sources=(own, forced, skill),
        snippets=(1,),
        prompt_class=DeclaredClass.EDITOR_CONTENT,
        prompt_hash="hash-of-prompt",
        approval_ttl_s=3600,
    )


class Story:
    """One run that calls one tool."""

    def __init__(self, tool: str) -> None:
        self.entries: list[Entry] = []
        self.numbers = 0
        known = policy()
        begin = started(known, asked(), texts=texts(*known.sources, prompt="You answer support questions."))
        self.state: SuspendedRunState = self._step(None, begin)
        assert self.state.send is not None
        calls = (RawCall(name=tool, arguments='{"n":1}'), RawCall(id="c2", name="look", arguments='{"n":2}'))
        reply = ModelReply(text="I look.", calls=calls, usage=Usage(input_tokens=100, output_tokens=20))
        self.take(ModelReplied(**self.stamp(), send=self.state.send.id, reply=reply))

    def stamp(self) -> dict[str, Any]:
        """Give what every event carries."""
        self.numbers += 1
        return {"nonce": nonce(self.numbers), "elapsed_ms": 10 * self.numbers, "policy": 1}

    def take(self, event: Event) -> None:
        """Step and write."""
        self.state = self._step(self.state, event)

    def resume(self, known: Facts | None = None) -> None:
        """Begin a segment."""
        self.take(RunResumed(**self.stamp(), cause=ResumeCause.ANSWER, facts=known))

    def approve(self) -> None:
        """Answer the open approval."""
        self.resume()
        assert self.state.question is not None
        verdicts = dict.fromkeys(self.state.question.calls, CallVerdict(approve=True))
        decider = msgspec.structs.replace(DECIDER, max_class=DeclaredClass.SECRET_ADJACENT)
        self.take(DecisionGiven(**self.stamp(), question=self.state.question.id, decider=decider, verdicts=verdicts))

    def supply(self) -> None:
        """Answer the open input question."""
        self.resume()
        assert self.state.question is not None
        decider = msgspec.structs.replace(DECIDER, max_class=DeclaredClass.SECRET_ADJACENT)
        self.take(InputGiven(**self.stamp(), question=self.state.question.id, decider=decider, data='{"answer":"a"}'))

    def _step(self, state: SuspendedRunState | None, event: Event) -> SuspendedRunState:
        result = step(state, event)
        self.entries.append(entry_of(result, Entry(version=ENTRY_VERSION, event=event)))
        return result.state


def answers() -> dict[str, Answer]:
    """Give one answer of each kind."""
    given: dict[str, Any] = {"question": nonce(9), "decider": OWNER, "via": "cli"}
    verdicts = {
        "call_1_0": CallVerdict(approve=True, arguments='{"n":2}'),
        "c2": CallVerdict(approve=False, reason="not now"),
    }
    return {
        "decision": Answer(**given, verdicts=verdicts),
        "input": Answer(**given, data='{"answer":"a"}'),
        "outcome_happened": Answer(**given, outcome=OutcomeWord(call="call_1_0", happened="refunded")),
        "outcome_run": Answer(**given, outcome=OutcomeWord(call="call_1_0", run=True)),
        "outcome_stop": Answer(**given, outcome=OutcomeWord(call="call_1_0")),
    }
