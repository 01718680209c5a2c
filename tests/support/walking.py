"""An exhaustive walk over the machine: every state that a small alphabet of events reaches, breadth first.

States are compared by what matters for what can happen next: nonces, ids, counters that only grow and texts are left
out. Two ghosts travel beside each state: which calls were handed out and may have been performed, and which were
denied. The laws are checked at every transition, so the first broken one comes with a shortest path to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from codec.actor import LiveActor
from codec.commands import CallModel, CallTool, Preview
from codec.events import (
    CallVerdict,
    CancelRequested,
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
    RunStarted,
    StateCorrupted,
    ToolFailed,
    ToolReturned,
)
from codec.facts import EgressFacts, Facts
from codec.suspended import Call, SuspendedRunState
from codec.transcript import ModelReply, RawCall
from codec.vocabulary import (
    ActorKind,
    CallStatus,
    DeclaredClass,
    FailureClass,
    Phase,
    ResumeCause,
    Role,
    ToolEffect,
    TrustZone,
    Verdict,
)
from tests.support.builders import (
    ASK,
    LABEL,
    LOOK,
    POST,
    SHOWN,
    WRITE,
    facts,
    fallback,
    nonce,
    provider,
    request,
    source,
    started,
)
from worker.core.errors import ProtocolError
from worker.core.gate import decide
from worker.core.machine import TABLE, step
from worker.core.sources import carried_sources
from worker.core.work import Step

SECRET = source(5, DeclaredClass.SECRET_ADJACENT)
DORA = LiveActor(
    kind=ActorKind.USER,
    name="dora",
    uid=7,
    enabled=True,
    grants=("runs:decide", "runs:content"),
    max_class=DeclaredClass.SECRET_ADJACENT,
)
NOBODY = LiveActor(kind=ActorKind.USER, name="nick", uid=8, enabled=True)
_GONE_OWNER = LiveActor(kind=ActorKind.LOCAL, name="local")
_HOSTS = (
    EgressFacts(host="near.example", zone=TrustZone.LOCAL),
    EgressFacts(host="far.example", zone=TrustZone.EXTERNAL_GLOBAL),
)
_TOOLS = (LOOK, WRITE, LABEL, ASK, SHOWN, POST)
_OFF = ("write", "shown", "ask")
_SWITCHED_OFF = tuple(msgspec.structs.replace(tool, enabled=tool.name not in _OFF) for tool in _TOOLS)


def _variant(zone: TrustZone = TrustZone.LOCAL, **changes: Any) -> Facts:
    defaults: dict[str, Any] = {
        "providers": (provider(1, zone), provider(2, zone, "spare")),
        "fallbacks": (fallback("spare", 2),),
        "sources": (SECRET,),
        "egress": _HOSTS,
        "max_iterations": 2,
        "tools": _TOOLS,
    }
    return facts(**{**defaults, **changes})


VARIANTS: dict[str, Facts] = {
    "permitting": _variant(),
    "refusing": _variant(TrustZone.EXTERNAL_GLOBAL),
    "gone": _variant(gone=True),
    "unreadable": _variant(readable=False),
    "disabled": _variant(owner=_GONE_OWNER),
    "switched_off": _variant(tools=_SWITCHED_OFF),
    "shorter": _variant(fallbacks=()),
}
CLOSED = frozenset({"refusing", "gone", "unreadable", "disabled"})
"""Facts under which nothing may leave."""

Turn = tuple[tuple[str, str], ...]
_ = "{}"
TURNS: tuple[Turn, ...] = (
    (),
    (("look", _),),
    (("write", _),),
    (("ask", _),),
    (("label", _),),
    (("shown", _),),
    (("nothing", _),),
    (("post", '{"url":"http://near.example/"}'),),
    (("post", '{"url":"http://far.example/"}'),),
    (("look", _), ("write", _)),
    (("look", _), ("look", _)),
    (("write", _), ("write", _)),
    (("shown", _), ("ask", _)),
    (("write", "{"), ("look", _)),
)
RETRIES = 1


class LawBrokenError(AssertionError):
    """A law of the machine does not hold; the message is the law and the shortest path to the place."""


@dataclass(frozen=True, slots=True)
class Node:
    """A state with its ghosts.

    Shape: ids of calls that may have been performed, and of calls that a person denied; `entered` when a waiting state
    was judged by a segment's first event, as each driver does before it folds an answer.
    """

    state: SuspendedRunState | None
    policy: str
    entered: bool = False
    performed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Edge:
    """One transition between two keys."""

    label: str
    event: type
    target: object
    edited: bool
    person: bool
    again: bool


@dataclass(slots=True)
class Walk:
    """What was seen. `cells` are the pairs of phase and event that led to a step."""

    nodes: dict[object, Node] = field(default_factory=dict)
    parents: dict[object, tuple[object, str]] = field(default_factory=dict)
    edges: dict[object, list[Edge]] = field(default_factory=dict)
    cells: set[tuple[Phase, type]] = field(default_factory=set)
    refused: set[tuple[Phase, type]] = field(default_factory=set)
    transitions: int = 0

    def path(self, key: object) -> str:
        """Name the events on the shortest way to a key."""
        labels: list[str] = []
        while key in self.parents:
            key, label = self.parents[key]
            labels.append(label)
        return " > ".join(reversed(labels)) or "start"


def key_of(node: Node) -> object:
    """Give what of a node can make a difference to what happens next."""
    state = node.state
    if state is None:
        return ("new",)
    if state.phase is Phase.DONE:
        return (Phase.DONE, state.reason)
    calls = tuple(
        (call.name, "done")
        if call.status is CallStatus.DONE
        else (
            call.name,
            call.proposed,
            call.status.value,
            call.gated,
            call.decided,
            call.supplied is not None,
            call.preview is not None,
            call.approved,
            call.id in node.performed,
            call.id in node.denied,
        )
        for call in state.calls
    )
    return (
        state.phase,
        node.policy,
        node.entered,
        state.counters.rounds,
        state.hop,
        state.retries,
        state.synthesis,
        None if state.question is None else (state.question.kind, len(state.question.calls)),
        None if state.blocked is None else state.blocked.reason,
        state.reason,
        calls,
    )


def walk(
    *,
    turns: tuple[Turn, ...] = TURNS,
    variants: tuple[str, ...] = tuple(VARIANTS),
    stored: bool = True,
) -> Walk:
    """Walk everything. Errors: `LawBrokenError` at the first transition that breaks a law."""
    found = Walk()
    root = Node(state=None, policy="")
    found.nodes[key_of(root)] = root
    queue = deque([key_of(root)])
    numbers = count(100)
    while queue:
        key = queue.popleft()
        node = found.nodes[key]
        found.edges[key] = []
        if stored and node.state is not None:
            node = _through_storage(found, key, node)
        for label, event, policy in alphabet(node, turns, variants, numbers):
            after = _take(found, key, node, label, event, policy)
            if after is None:
                continue
            target = key_of(after)
            found.edges[key].append(
                _edge(label, event, target, edited=node.policy not in ("", policy) or isinstance(event, PolicyReplaced))
            )
            if target not in found.nodes:
                found.nodes[target] = after
                found.parents[target] = (key, label)
                queue.append(target)
        same = found.nodes[key].state == node.state
        _law(found, key, "anything", same, "no event changes the state that it is given")
    return found


def _through_storage(found: Walk, key: object, node: Node) -> Node:
    assert node.state is not None
    loaded = SuspendedRunState.decode(node.state.encode())
    _law(found, key, "", loaded == node.state, "what was stored is what is loaded")
    return replace(node, state=loaded)


def _take(found: Walk, key: object, node: Node, label: str, event: Event, policy: str) -> Node | None:
    phase = Phase.NEW if node.state is None else node.state.phase
    known = isinstance(event, RunStarted) if phase is Phase.NEW else type(event) in TABLE[phase]
    known = known or type(event) in TABLE[phase]
    try:
        result = step(node.state, event)
    except ProtocolError:
        found.refused.add((phase, type(event)))
        _law(found, key, label, not known, "what the table has is no protocol error")
        return None
    _law(found, key, label, known, "what the table has not is a protocol error")
    found.cells.add((phase, type(event)))
    found.transitions += 1
    if result.stale:
        empty = not result.commands and not result.decisions and not result.denials
        _law(found, key, label, result.state == node.state and empty, "stale leaves state and commands untouched")
        return None
    if phase is Phase.DONE and node.state is not None:
        counted = msgspec.structs.replace(result.state, counters=node.state.counters, policy=node.state.policy)
        _law(found, key, label, counted == node.state and not result.commands, "after the end only usage is counted")
        return None
    after = _ghosts(node, event, result, policy)
    for law, holds in laws(node, event, result, after):
        _law(found, key, label, holds, law)
    return after


def _law(found: Walk, key: object, label: str, holds: bool, law: str) -> None:
    if not holds:
        raise LawBrokenError(f"{law}: {found.path(key)} > {label}")


def _ghosts(node: Node, event: Event, result: Step, policy: str) -> Node:
    performed = set(node.performed)
    if isinstance(event, ToolFailed) and event.failure in (FailureClass.PERMIT_EXPIRED, FailureClass.NOT_EXECUTED):
        performed.discard(event.call)
    if isinstance(event, OutcomeGiven) and event.run:
        performed.discard(event.call)
    if isinstance(event, RunResumed) and event.cause is ResumeCause.DRAIN:
        performed.clear()
    for command in result.commands:
        if isinstance(command, CallTool) and command.effect is ToolEffect.NON_IDEMPOTENT_WRITE:
            performed.add(command.call)
    denied = set(node.denied)
    if isinstance(event, DecisionGiven) and node.state is not None and event.decider.grants:
        asked = () if node.state.question is None else node.state.question.calls
        denied.update(i for i, v in event.verdicts.items() if i in asked and not v.approve)
    living = {call.id for call in result.state.calls}
    waits = result.state.phase is Phase.WAITING
    return Node(
        state=result.state,
        policy=policy,
        entered=waits and (node.entered or isinstance(event, RunResumed | PolicyReplaced)) and _unmoved(node),
        performed=frozenset(performed & living),
        denied=frozenset(denied & living),
    )


def laws(node: Node, event: Event, result: Step, after: Node) -> Iterator[tuple[str, bool]]:
    """Give each law and whether it holds for one transition."""
    state = result.state
    acts = [c for c in result.commands if isinstance(c, CallModel | CallTool | Preview)]
    sends = [c for c in result.commands if isinstance(c, CallModel)]
    calls = [c for c in result.commands if isinstance(c, CallTool)]
    yield "at most one send a step", len(sends) <= 1
    for send in sends:
        yield "a send stands on a decision made now", _stands(state, send)
        yield "nothing is sent under facts that permit nothing", after.policy not in CLOSED
        yield "nothing is sent while calls are open", not state.calls
        yield "each call has exactly one result", _answered(state)
    if isinstance(event, RunResumed) and after.policy in CLOSED:
        yield "a refused resume does nothing", not acts
    if node.entered and isinstance(event, DecisionGiven | InputGiven | OutcomeGiven) and after.policy in CLOSED:
        yield "an answer releases nothing under facts that permit nothing", not acts
    yield from _call_laws(node, event, state, calls, after.policy)
    for command in result.commands:
        if isinstance(command, Preview):
            previewing = any(c.id == command.call and c.status is CallStatus.PREVIEW for c in state.calls)
            yield "only what waits for a preview is previewed", previewing
    yield "a run that waits has suspended", state.phase is not Phase.WAITING or bool(result.commands) or _unmoved(node)
    yield "one closing command", len([c for c in result.commands if type(c).__name__ in ("Suspend", "Finish")]) <= 1


def _call_laws(
    node: Node, event: Event, state: SuspendedRunState, commands: list[CallTool], policy: str
) -> Iterator[tuple[str, bool]]:
    before = {c.id: c for c in node.state.calls} if node.state is not None else {}
    now = {c.id: c for c in state.calls}
    asked = any(
        c.status in (CallStatus.PREVIEW, CallStatus.ASK, CallStatus.NEED_INPUT, CallStatus.UNKNOWN)
        for c in now.values()
    )
    for command in commands:
        call, old = now[command.call], before.get(command.call)
        repeated = isinstance(event, RunResumed) and old is not None and old.status is CallStatus.OPEN
        yield "nothing of a turn executes before all its questions are answered", repeated or not asked
        yield "a gated call executes only after a person released it", call.decided or not call.gated
        yield "a denied call never executes", call.id not in node.denied
        yield "a write that may have happened is not repeated", command.call not in _forgiven(node, event)
        yield "no call executes under facts that permit nothing", policy not in ("gone", "unreadable", "disabled")
        yield (
            "a call that is switched off is not executed",
            policy != "switched_off" or call.name in ("look", "label", "post"),
        )
        yield "nothing leaves to a place that what is carried may not reach", "far.example" not in call.proposed
        yield "unusable arguments are never executed", call.proposed != "{"
        yield "a call that needs input has it", call.name != "ask" or call.supplied is not None
        yield "what is released is open", call.status is CallStatus.OPEN
    if isinstance(event, ToolReturned | ToolFailed):
        yield "only an open call is answered", before[event.call].status is CallStatus.OPEN
    for name, old in before.items():
        yield "a call keeps its key", name not in now or now[name].key == old.key


def _forgiven(node: Node, event: Event) -> frozenset[str]:
    gone = {event.call} if isinstance(event, OutcomeGiven) and event.run else set()
    if isinstance(event, ToolFailed) and event.failure in (FailureClass.PERMIT_EXPIRED, FailureClass.NOT_EXECUTED):
        gone = {event.call}
    if isinstance(event, RunResumed) and event.cause is ResumeCause.DRAIN:
        gone = set(node.performed)
    return node.performed - gone


def _stands(state: SuspendedRunState, send: CallModel) -> bool:
    sources = carried_sources(state.facts, state.carried)
    now = decide(state.facts, sources, state.policy, state.high_water)
    given = msgspec.structs.replace(send.permit.decision, fresh=False)
    target = next(p for p in state.facts.providers if p.uid == send.permit.target.provider)
    return now.verdict is not Verdict.REFUSED and given == now and target.zone == send.permit.target.zone


def _answered(state: SuspendedRunState) -> bool:
    asked = [call.id for message in state.transcript for call in message.tool_calls]
    given = [message.tool_call_id for message in state.transcript if message.role is Role.TOOL]
    return sorted(asked) == sorted(str(name) for name in given) and len(set(asked)) == len(asked)


def _unmoved(node: Node) -> bool:
    return node.state is not None and node.state.phase is Phase.WAITING


def dead_ends(found: Walk, allowed: Callable[[Edge], bool]) -> set[object]:
    """Give the keys from which no end can be reached over the allowed edges."""
    backwards: dict[object, list[object]] = {}
    for key, edges in found.edges.items():
        for edge in edges:
            if allowed(edge):
                backwards.setdefault(edge.target, []).append(key)
    good = {key for key, node in found.nodes.items() if node.state is not None and node.state.phase is Phase.DONE}
    queue = deque(good)
    while queue:
        for key in backwards.get(queue.popleft(), ()):
            if key not in good:
                good.add(key)
                queue.append(key)
    return set(found.nodes) - good


def a_cycle(found: Walk, allowed: Callable[[Edge], bool]) -> object | None:
    """Give a key that lies on a cycle of allowed edges, or None."""
    into = dict.fromkeys(found.nodes, 0)
    kept = {key: [e.target for e in edges if allowed(e)] for key, edges in found.edges.items()}
    for targets in kept.values():
        for target in targets:
            into[target] += 1
    queue = deque(key for key, number in into.items() if number == 0)
    left = set(found.nodes)
    while queue:
        key = queue.popleft()
        left.discard(key)
        for target in kept[key]:
            into[target] -= 1
            if into[target] == 0:
                queue.append(target)
    return next(iter(left), None)


def _edge(label: str, event: Event, target: object, *, edited: bool) -> Edge:
    return Edge(
        label=label,
        event=type(event),
        target=target,
        edited=edited,
        person=isinstance(event, RunResumed | DecisionGiven | InputGiven | OutcomeGiven),
        again=isinstance(event, ModelFailed | ToolFailed) and event.failure is FailureClass.PERMIT_EXPIRED,
    )


_Letter = tuple[str, Event, str]


def alphabet(
    node: Node, turns: tuple[Turn, ...], variants: tuple[str, ...], numbers: Iterator[int]
) -> Iterator[_Letter]:
    """Give the events that are tried in a node, each with a name and the facts that hold after it."""
    number = next(numbers)
    index = list(VARIANTS).index(node.policy) + 1 if node.policy else 1
    stamp = _Stamp(nonce=nonce(number), elapsed_ms=0, policy=index)
    yield from _starting(node, variants, stamp)
    yield from _resuming(node, variants, stamp)
    for label, event in (
        *_model(node.state, turns, stamp),
        *_tools(node.state, stamp),
        *_people(node.state, stamp),
        ("cancel", CancelRequested(**stamp.fields, by="dora")),
        ("expire", Expired(**stamp.fields)),
        ("corrupt", StateCorrupted(**stamp.fields)),
    ):
        yield label, event, node.policy


@dataclass(frozen=True, slots=True)
class _Stamp:
    nonce: str
    elapsed_ms: int
    policy: int

    @property
    def fields(self) -> dict[str, Any]:
        return {"nonce": self.nonce, "elapsed_ms": self.elapsed_ms, "policy": self.policy}

    def under(self, variant: str) -> dict[str, Any]:
        return {**self.fields, "policy": list(VARIANTS).index(variant) + 1}


def _starting(node: Node, variants: tuple[str, ...], stamp: _Stamp) -> Iterator[_Letter]:
    for variant in variants if node.state is None else ("permitting",):
        event = started(VARIANTS[variant], request(snippets=(SECRET.uid,)), retries=RETRIES)
        event = msgspec.structs.replace(event, **stamp.under(variant))
        yield f"start {variant}", event, variant


def _resuming(node: Node, variants: tuple[str, ...], stamp: _Stamp) -> Iterator[_Letter]:
    for variant in variants:
        facts_now = VARIANTS[variant]
        moved = stamp.under(variant)
        # Only recovery counts segments; a few facts are enough to see that it is judged like the others.
        causes = (ResumeCause.ANSWER, ResumeCause.RECOVERY)[: 2 if variant in ("permitting", "refusing") else 1]
        for cause in causes:
            event = RunResumed(**moved, cause=cause, facts=facts_now)
            yield f"resume {cause.value} {variant}", event, variant
        yield f"policy {variant}", PolicyReplaced(**moved, facts=facts_now), variant
    yield "resume drain", RunResumed(**stamp.fields, cause=ResumeCause.DRAIN), node.policy


def _model(state: SuspendedRunState | None, turns: tuple[Turn, ...], stamp: _Stamp) -> Iterator[tuple[str, Event]]:
    send = "late" if state is None or state.send is None else state.send.id
    # Later rounds differ from the first only in how near the cap is, so a few of the turns are enough there.
    first = state is not None and state.counters.rounds == 0
    for turn in turns[:1] if send == "late" else turns if first else turns[:4]:
        calls = tuple(RawCall(name=name, arguments=arguments) for name, arguments in turn)
        label = f"reply {'+'.join(name for name, arguments in turn) or 'text'}"
        yield label, ModelReplied(**stamp.fields, send=send, reply=ModelReply(text="said", calls=calls))
    for failure in (FailureClass.AUTH, FailureClass.CONNECTION, FailureClass.PERMIT_EXPIRED):
        yield f"send fails {failure.value}", ModelFailed(**stamp.fields, send=send, failure=failure)
    yield "late reply", ModelReplied(**stamp.fields, send="other", reply=ModelReply(text="late"))


def _tools(state: SuspendedRunState | None, stamp: _Stamp) -> Iterator[tuple[str, Event]]:
    calls: tuple[Call, ...] = () if state is None else state.calls
    for index, name in enumerate([call.id for call in calls] or ["late"]):
        yield f"call {index} returns", ToolReturned(**stamp.fields, call=name, result="r")
        yield f"preview {index}", Previewed(**stamp.fields, call=name, lines=("would",))
        for failure in (FailureClass.RAISED, FailureClass.NOT_EXECUTED, FailureClass.PERMIT_EXPIRED):
            yield f"call {index} fails {failure.value}", ToolFailed(**stamp.fields, call=name, failure=failure)


def _people(state: SuspendedRunState | None, stamp: _Stamp) -> Iterator[tuple[str, Event]]:
    question = None if state is None else state.question
    name = "late" if question is None else question.id
    calls = ("late",) if question is None else question.calls
    yes, no = CallVerdict(approve=True), CallVerdict(approve=False, reason="no")
    verdicts = {
        "approve": dict.fromkeys(calls, yes),
        "deny": dict.fromkeys(calls, no),
        "approve one": {call: no if i else yes for i, call in enumerate(calls)},
        "decide one": {calls[0]: yes},
    }
    for label, given in verdicts.items():
        yield label, DecisionGiven(**stamp.fields, question=name, decider=DORA, verdicts=given)
    yield (
        "approve by nobody",
        DecisionGiven(**stamp.fields, question=name, decider=NOBODY, verdicts=verdicts["approve"]),
    )
    yield (
        "approve an older question",
        DecisionGiven(**stamp.fields, question="0" * 32, decider=DORA, verdicts=verdicts["approve"]),
    )
    for data in ('{"answer":"a"}', '{"answer":7}', "no json"):
        yield f"submit {data}", InputGiven(**stamp.fields, question=name, decider=DORA, data=data)
    outcomes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("happened", {"happened": "r"}),
        ("run it", {"run": True}),
        ("stop", {}),
    )
    for label, word in outcomes:
        yield label, OutcomeGiven(**stamp.fields, question=name, decider=DORA, call=calls[0], **word)
