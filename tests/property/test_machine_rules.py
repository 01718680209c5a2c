"""Random runs: edits of the policy, answers of people and crashes at any point; what was journalled replays equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codec.commands import CallModel, CallTool
from codec.events import (
    CallVerdict,
    DecisionGiven,
    Event,
    Expired,
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
from codec.journal import ENTRY_VERSION, Entry
from codec.suspended import SuspendedRunState
from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import CallStatus, FailureClass, FinishReason, Phase, ResumeCause, Role, ToolEffect, Verdict
from tests.support.builders import RUN, TOOLS, nonce, request, started, texts
from tests.support.strategies import CLEAN_TEXT, policies
from tests.support.walking import DORA, NOBODY
from worker.core.chain import GENESIS, link
from worker.core.gate import decide
from worker.core.machine import step
from worker.core.replay import entry_of, fold, replay
from worker.core.sources import carried_sources
from worker.core.work import Step

ARGUMENTS = st.sampled_from(("{}", '{"n":1}', '{"n":"x"}', "{", '{"n":NaN}', "[]", '{"url":"http://h/"}'))
NAMES = st.sampled_from((*(tool.name for tool in TOOLS), "nothing"))
CALLS = st.lists(
    st.builds(RawCall, id=st.sampled_from(("", "c1", "c2")), name=NAMES, arguments=ARGUMENTS), max_size=3
).map(tuple)
FACTS = policies().map(lambda facts: msgspec.structs.replace(facts, tools=TOOLS))


@dataclass(slots=True)
class Journal:
    """A run with what a driver would store of it."""

    state: SuspendedRunState | None = None
    entries: list[Entry] | None = None
    numbers: int = 0
    policy: int = 1

    def stamp(self) -> dict[str, Any]:
        self.numbers += 1
        return {"nonce": nonce(self.numbers), "elapsed_ms": self.numbers, "policy": self.policy}

    def take(self, event: Event) -> Step:
        """Step, and write what was done as an entry that went through its bytes."""
        result = step(self.state, event)
        entry = entry_of(result, Entry(version=ENTRY_VERSION, event=event))
        self.entries = [*(self.entries or []), Entry.decode(entry.encode())]
        self.state = result.state
        return result


class Runs(RuleBasedStateMachine):
    """One run under a policy that anybody may edit at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.last: Step | None = None
        self.performed: set[str] = set()

    @property
    def state(self) -> SuspendedRunState:
        assert self.journal.state is not None
        return self.journal.state

    def act(self, event: Event) -> None:
        before = self.journal.state
        self.last = self.journal.take(event)
        self.ended(event)
        for command in self.last.commands:
            if isinstance(command, CallTool) and command.effect is ToolEffect.NON_IDEMPOTENT_WRITE:
                assert command.key not in self.performed, "a write that may have happened is repeated"
                self.performed.add(command.key)
        if self.last.stale:
            assert self.journal.state == before
            assert not self.last.commands

    def ended(self, event: Event) -> None:
        """Forget writes that surely did not happen, or that a person wants to happen again."""
        known = {call.id: call.key for call in self.state.calls}
        if isinstance(event, ToolFailed) and event.failure in (FailureClass.PERMIT_EXPIRED, FailureClass.NOT_EXECUTED):
            self.performed.discard(known.get(event.call, ""))
        if isinstance(event, OutcomeGiven) and event.run:
            self.performed.discard(known.get(event.call, ""))

    @initialize(facts=FACTS, snippets=st.lists(st.integers(1, 6), max_size=2, unique=True), skill=st.booleans())
    def begin(self, facts: Facts, snippets: list[int], skill: bool) -> None:
        asked = request(snippets=tuple(snippets), skills=(1,) if skill else ())
        event = started(facts, asked, texts=texts(*facts.sources, prompt="be kind"), retries=1)
        self.act(msgspec.structs.replace(event, **self.journal.stamp()))

    @precondition(lambda self: self.state.phase is Phase.MODEL)
    @rule(calls=CALLS, finish=st.sampled_from(FinishReason), said=CLEAN_TEXT)
    def model_replies(self, calls: tuple[RawCall, ...], finish: FinishReason, said: str) -> None:
        assert self.state.send is not None
        reply = ModelReply(text=said, calls=calls, finish=finish, usage=Usage(input_tokens=7, output_tokens=-1))
        self.act(ModelReplied(**self.journal.stamp(), send=self.state.send.id, reply=reply))

    @precondition(lambda self: self.state.phase is Phase.MODEL)
    @rule(failure=st.sampled_from((FailureClass.CONNECTION, FailureClass.PERMIT_EXPIRED, FailureClass.AUTH)))
    def model_fails(self, failure: FailureClass) -> None:
        assert self.state.send is not None
        self.act(ModelFailed(**self.journal.stamp(), send=self.state.send.id, failure=failure))

    @precondition(lambda self: self.state.phase is Phase.TOOLS)
    @rule(data=st.data(), failure=st.none() | st.sampled_from(FailureClass), result=CLEAN_TEXT)
    def tool_answers(self, data: st.DataObject, failure: FailureClass | None, result: str) -> None:
        call = data.draw(st.sampled_from(self.state.calls))
        stamp = self.journal.stamp()
        if call.status is CallStatus.PREVIEW:
            self.act(Previewed(**stamp, call=call.id, lines=(result,), failed=failure is not None))
        elif failure is None:
            self.act(ToolReturned(**stamp, call=call.id, result=result))
        else:
            self.act(ToolFailed(**stamp, call=call.id, failure=failure))

    @precondition(lambda self: self.state.phase is Phase.WAITING)
    @rule(data=st.data(), able=st.booleans(), edited=st.none() | ARGUMENTS)
    def person_decides(self, data: st.DataObject, able: bool, edited: str | None) -> None:
        assert self.state.question is not None
        verdicts = {
            name: CallVerdict(approve=data.draw(st.booleans()), arguments=edited)
            for name in self.state.question.calls
            if data.draw(st.booleans())
        }
        decider = DORA if able else NOBODY
        question = self.state.question.id
        self.act(DecisionGiven(**self.journal.stamp(), question=question, decider=decider, verdicts=verdicts))

    @precondition(lambda self: self.state.phase is Phase.WAITING)
    @rule(data=st.sampled_from(('{"answer":"a"}', '{"answer":1}', "5", "{")))
    def person_supplies(self, data: str) -> None:
        assert self.state.question is not None
        question = self.state.question.id
        self.act(InputGiven(**self.journal.stamp(), question=question, decider=DORA, data=data))

    @precondition(lambda self: self.state.phase is Phase.WAITING)
    @rule(happened=st.none() | CLEAN_TEXT, run=st.booleans())
    def person_settles(self, happened: str | None, run: bool) -> None:
        assert self.state.question is not None
        call, question = self.state.question.calls[0], self.state.question.id
        word: dict[str, Any] = {"call": call, "happened": happened, "run": run and happened is None}
        self.act(OutcomeGiven(**self.journal.stamp(), question=question, decider=DORA, **word))

    @precondition(lambda self: self.state.phase not in (Phase.DONE, Phase.NEW))
    @rule(facts=st.none() | FACTS, cause=st.sampled_from((ResumeCause.RECOVERY, ResumeCause.ANSWER)))
    def segment_begins(self, facts: Facts | None, cause: ResumeCause) -> None:
        self.journal.policy += facts is not None
        self.act(RunResumed(**self.journal.stamp(), cause=cause, facts=facts))

    @precondition(lambda self: self.state.phase not in (Phase.DONE, Phase.NEW))
    @rule(facts=FACTS)
    def policy_moves(self, facts: Facts) -> None:
        self.journal.policy += 1
        self.act(PolicyReplaced(**self.journal.stamp(), facts=facts))

    @rule()
    def late_answer(self) -> None:
        self.act(ToolReturned(**self.journal.stamp(), call="long ago", result="late"))
        assert self.last is not None and self.last.stale

    @precondition(lambda self: self.state.phase is Phase.WAITING)
    @rule()
    def time_runs_out(self) -> None:
        self.act(Expired(**self.journal.stamp()))

    @invariant()
    def stored_is_loaded(self) -> None:
        if self.journal.state is not None:
            assert SuspendedRunState.decode(self.state.encode()) == self.state

    @invariant()
    def sends_stand_on_a_decision_made_now(self) -> None:
        for command in self.last.commands if self.last is not None else ():
            if isinstance(command, CallModel):
                state = self.state
                now = decide(state.facts, carried_sources(state.facts, state.carried), state.policy, state.high_water)
                assert now.verdict is not Verdict.REFUSED
                assert now == msgspec.structs.replace(command.permit.decision, fresh=False)

    @invariant()
    def calls_have_one_result_each(self) -> None:
        if self.journal.state is None or self.state.phase is not Phase.MODEL:
            return
        asked = [call.id for message in self.state.transcript for call in message.tool_calls]
        given = [message.tool_call_id for message in self.state.transcript if message.role is Role.TOOL]
        assert asked == given

    def teardown(self) -> None:
        entries = self.journal.entries or []
        found = replay(None, entries)
        assert found.equal, found.divergence
        assert found.state == self.journal.state
        half = len(entries) // 2
        assert fold(fold(None, entries[:half]), entries[half:]) == self.journal.state


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=max(30, settings().max_examples // 2), stateful_step_count=25)


def _journal(choices: list[int]) -> list[Entry]:
    """Give the journal of a run that reads and writes until its choices run out."""
    journal = Journal()
    journal.take(msgspec.structs.replace(started(), **journal.stamp()))
    for choice in choices:
        state = journal.state
        assert state is not None
        if state.phase is Phase.MODEL and state.send is not None:
            calls = (RawCall(name="look", arguments="{}"), RawCall(name="write", arguments='{"n":1}'))[: choice % 3]
            reply = ModelReply(text=f"said {choice}", calls=calls)
            journal.take(ModelReplied(**journal.stamp(), send=state.send.id, reply=reply))
        elif state.phase is Phase.TOOLS:
            call = next(c for c in state.calls if c.status is CallStatus.OPEN)
            journal.take(ToolReturned(**journal.stamp(), call=call.id, result=f"result {choice}"))
        elif state.phase is Phase.WAITING and state.question is not None:
            journal.take(RunResumed(**journal.stamp(), cause=ResumeCause.ANSWER))
            verdicts = {name: CallVerdict(approve=choice % 2 == 0) for name in state.question.calls}
            journal.take(DecisionGiven(**journal.stamp(), question=state.question.id, decider=DORA, verdicts=verdicts))
    assert journal.entries is not None
    return journal.entries


def _chain(entries: list[Entry]) -> list[bytes]:
    links = [GENESIS]
    for sequence, entry in enumerate(entries, start=1):
        columns = {"run": RUN, "seq": sequence, "kind": type(entry.event).__name__, "segment": 1, "token": "t"}
        links.append(link(links[-1], **columns, policy=entry.event.policy, meta="{}", payload=entry.encode()))  # type: ignore[arg-type]
    return links


JOURNALS = st.lists(st.integers(0, 8), min_size=3, max_size=10).map(_journal)


@given(JOURNALS, st.data())
def test_the_chain_finds_a_touched_entry_at_its_sequence(entries: list[Entry], data: st.DataObject) -> None:
    """Changed, dropped or swapped with the next: the first link that differs is that of its sequence."""
    place = data.draw(st.integers(0, len(entries) - 2))
    touched = list(entries)
    how = data.draw(st.sampled_from(("changed", "dropped", "swapped")))
    if how == "changed":
        event = msgspec.structs.replace(entries[place].event, elapsed_ms=999)
        touched[place] = msgspec.structs.replace(entries[place], event=event)
    elif how == "dropped":
        del touched[place]
    else:
        touched[place : place + 2] = [entries[place + 1], entries[place]]

    pairs = zip(_chain(entries), _chain(touched), strict=False)

    assert place + 1 == next(i for i, (before, after) in enumerate(pairs) if before != after)


@given(JOURNALS, st.data())
def test_replay_finds_a_changed_command_or_decision_at_its_sequence(entries: list[Entry], data: st.DataObject) -> None:
    """What an entry says that was done is compared where it stands, with both sides."""
    place = data.draw(st.integers(0, len(entries) - 1))
    how = data.draw(st.sampled_from(("stale", "command", "decision")))
    changed: dict[str, Any] = {"stale": not entries[place].stale}
    if how == "command" and entries[place].commands:
        changed = {"commands": (msgspec.structs.replace(entries[place].commands[0], word="other"),)}
    if how == "decision" and entries[place].decisions:
        changed = {"decisions": (msgspec.structs.replace(entries[place].decisions[0], provider="other"),)}
    touched = [*entries[:place], msgspec.structs.replace(entries[place], **changed), *entries[place + 1 :]]

    found = replay(None, touched)

    assert found.divergence is not None
    assert place + 1 == found.divergence.sequence
    assert place == found.entries
    assert found.divergence.cause == ("decision" if "decisions" in changed else "command")


@given(JOURNALS, st.data())
def test_replay_finds_a_dropped_or_swapped_entry_no_later_than_its_successor(
    entries: list[Entry], data: st.DataObject
) -> None:
    """Every entry of a run that moves leads to what follows, so its successor does not fit without it."""
    place = data.draw(st.integers(0, len(entries) - 2))
    touched = list(entries)
    if data.draw(st.booleans()):
        del touched[place]
    else:
        touched[place : place + 2] = [entries[place + 1], entries[place]]
    resumes = isinstance(entries[place].event, RunResumed)

    found = replay(None, touched)

    assert resumes or (found.divergence is not None and found.divergence.sequence <= place + 2)


@given(JOURNALS, st.data())
def test_replay_finds_a_changed_answer_of_a_model(entries: list[Entry], data: st.DataObject) -> None:
    """A reply that was exchanged shows at the next send, whose hash covers the transcript."""
    replies = [i for i, e in enumerate(entries[:-1]) if isinstance(e.event, ModelReplied) and e.event.reply.calls]
    if not replies or not any(isinstance(e.event, ModelReplied) for e in entries[replies[0] + 1 :]):
        return
    place = replies[0]
    event = entries[place].event
    assert isinstance(event, ModelReplied)
    reply = msgspec.structs.replace(event.reply, text="something else")
    touched = list(entries)
    touched[place] = msgspec.structs.replace(entries[place], event=msgspec.structs.replace(event, reply=reply))

    found = replay(None, touched)

    assert found.divergence is not None
    assert place + 1 <= found.divergence.sequence
