"""Every state that a small alphabet reaches, every event in each of them, and the laws that hold at every step.

Faults that are planted into the core show that the walk would find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codec.commands import Preview
from codec.decisions import Decision
from codec.events import CancelRequested, Expired, RunStarted, StateCorrupted
from codec.transcript import Message
from codec.vocabulary import CallStatus, Phase, Role, TerminationReason, Verdict
from scripts.draw_states import MOVES
from tests.support.walking import CLOSED, TURNS, Edge, LawBrokenError, Walk, a_cycle, dead_ends, walk
from worker.core import answering, calls, machine, people, replies, sending, settling, transitions
from worker.core.machine import EVENTS, TABLE
from worker.core.work import Draft

ENDED_FROM_OUTSIDE = (CancelRequested, Expired, StateCorrupted)


@pytest.fixture(scope="module")
def walked() -> Walk:
    """One walk over everything; it raises at the first transition that breaks a law."""
    return walk()


def test_no_transition_breaks_a_law(walked: Walk) -> None:
    """The laws are checked while walking; this only sees that the walk went far enough to mean something."""
    assert len(walked.nodes) > 1000
    assert walked.transitions > 50_000


def test_every_cell_of_the_table_is_visited(walked: Walk) -> None:
    """There is no cell that nothing leads to, and starting is the only step outside the table."""
    expected = {(phase, event) for phase, row in TABLE.items() for event in row}

    assert expected | {(Phase.NEW, RunStarted)} == walked.cells


def test_everything_outside_the_table_is_refused(walked: Walk) -> None:
    """Each pair of phase and event is either a step or a protocol error, and the walk has tried them all."""
    pairs = {(phase, event) for phase in Phase for event in EVENTS}

    assert pairs == walked.cells | walked.refused
    assert not walked.cells & walked.refused


def test_every_way_to_end_is_reached(walked: Walk) -> None:
    """Each reason that these facts and limits allow ends some run."""
    ended = {node.state.reason for node in walked.nodes.values() if node.state is not None}
    reason = TerminationReason
    others = {reason.BUDGET_EXHAUSTED, reason.CONTEXT_TRUNCATED, reason.PROVIDER_FAILED}

    assert set(reason) - others == ended - {None}


def test_no_state_is_a_dead_end(walked: Walk) -> None:
    """From every state an end is reached without a cancel, an expiry or a corruption."""
    assert not dead_ends(walked, lambda edge: edge.event not in ENDED_FROM_OUTSIDE)


def test_no_state_that_may_act_needs_an_operator(walked: Walk) -> None:
    """Under facts that permit something, an end is reached without anybody editing the catalogue."""
    stuck = dead_ends(walked, _without_edits)
    permitted = [key for key in stuck if walked.nodes[key].policy not in CLOSED]

    assert not [walked.path(key) for key in permitted]


def test_every_run_ends_or_waits(walked: Walk) -> None:
    """Without resumes, answers, edits and expired permits there is no way back to an earlier state."""
    found = a_cycle(walked, lambda edge: not (edge.edited or edge.person or edge.again))

    assert found is None, walked.path(found)


def test_the_page_of_states_shows_exactly_these_moves(walked: Walk) -> None:
    """The diagram's arrows and their events are those that the walk saw, and two that need what it leaves out.

    Those are a crash cap that is reached while waiting, and a budget that is spent when input does not fit.
    """
    seen: dict[tuple[Phase, Phase], set[str]] = {}
    for key, edges in walked.edges.items():
        for edge in edges:
            before, after = (_phase(walked, place) for place in (key, edge.target))
            if before is not after:
                seen.setdefault((before, after), set()).add(edge.event.__name__)

    seen[(Phase.WAITING, Phase.DONE)] |= {"RunResumed", "InputGiven"}

    assert {move: set(events) for move, events in MOVES.items()} == seen


def _phase(walked: Walk, key: object) -> Phase:
    state = walked.nodes[key].state
    return Phase.NEW if state is None else state.phase


def _without_edits(edge: Edge) -> bool:
    return not edge.edited and edge.event not in ENDED_FROM_OUTSIDE


def _no_problem(*_: Any, **__: Any) -> None:
    return None


def _permitted(draft: Draft) -> Decision:
    return Decision(verdict=Verdict.PERMITTED, configuration="support", policy=draft.state.policy)


def _first_result_only(draft: Draft) -> None:
    call = draft.state.calls[0]
    message = Message(role=Role.TOOL, content=call.result or "", tool_call_id=call.id)
    draft.put(transcript=(*draft.state.transcript, message), calls=(), question=None, blocked=None)


def _find_any(draft: Draft, identity: str, status: CallStatus) -> Any:
    found = next((c for c in draft.state.calls if c.id == identity), None)
    if found is None:
        draft.late()
    return found


def _any_question(draft: Draft, *_: Any) -> bool:
    return draft.state.question is not None


def _release_all(draft: Draft, event: Any, call: Any, verdict: Any) -> None:
    settling.change_call(draft, msgspec.structs.replace(call, status=CallStatus.HELD, decided=True))


def _keep_preview(draft: Draft, event: Any) -> None:
    _resume_tools(draft, event)
    draft.commands.extend(Preview(call=c.id, tool=c.name) for c in draft.state.calls)


_resume_tools = transitions.resume_tools
_check = calls.check


def _check_without_policy(state: Any, call: Any) -> Any:
    owner = msgspec.structs.replace(state.facts.owner, enabled=True)
    tools = tuple(msgspec.structs.replace(tool, enabled=True) for tool in state.facts.tools)
    facts = msgspec.structs.replace(state.facts, owner=owner, tools=tools, readable=True)
    return _check(msgspec.structs.replace(state, facts=facts), call)


def _call_always_permitted(draft: Draft, event: Any) -> None:
    transitions._take_facts(draft, event.facts)


def _strict_release(state: Any, call: Any, actor: Any, *, executes: bool = True) -> bool:
    return people.may_release(state, call, actor, executes=True)


def _patch(module: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


def _cell(phase: Phase, event: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    kind = next(e for e in EVENTS if e.__name__ == event)
    return lambda monkeypatch: monkeypatch.setitem(machine.TABLE[phase], kind, value)


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "skips the gate at the entry": ("a refused resume does nothing", _patch(transitions, "_problem", _no_problem)),
    "sends without asking the gate": ("a send stands on a decision", _patch(sending, "judge", _permitted)),
    "forgets the rule of held calls": ("nothing of a turn executes before", _patch(settling, "_UNSETTLED", ())),
    "repeats a write after a crash": ("a write that may have happened", _patch(transitions, "_once", lambda *_: False)),
    "drops a result": ("each call has exactly one result", _patch(settling, "_close_turn", _first_result_only)),
    "takes a result twice": ("only an open call is answered", _patch(transitions, "_find", _find_any)),
    "takes an answer while blocked": ("an answer releases nothing", _patch(answering, "_asked", _any_question)),
    "takes a denial for an approval": ("a denied call never executes", _patch(answering, "_decide", _release_all)),
    "asks nobody about writes": (
        "a gated call executes only after",
        _patch(calls, "_place", lambda call, tool: call.status),
    ),
    "forgets the tool policy": ("under facts that permit nothing", _patch(settling, "check", _check_without_policy)),
    "keeps an answer's release when the policy moves": (
        "an answer releases nothing",
        _cell(Phase.WAITING, "PolicyReplaced", _call_always_permitted),
    ),
    "previews what may not run any more": (
        "only what waits for a preview",
        _cell(Phase.TOOLS, "RunResumed", _keep_preview),
    ),
    "loses an event": ("what the table has", _patch(machine, "phase_of", lambda state: Phase.NEW)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault that is planted into the core breaks the law that stands against it, at the shortest path."""
    law, plant = FAULTS[fault]
    plant(monkeypatch)

    with pytest.raises(LawBrokenError, match=law):
        walk(stored=False)


def test_a_state_that_nobody_can_leave_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If even "it happened" asked the tool's policy, a tool switched off after a crash would hold its run for ever."""
    monkeypatch.setattr(answering, "may_release", _strict_release)
    found = walk(turns=((), (("write", "{}"),)), variants=("permitting", "switched_off"), stored=False)

    assert dead_ends(found, _without_edits)


def test_a_run_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a failed send always had another hop, the walk would go round."""
    monkeypatch.setattr(replies, "_next_hop", lambda draft: 1)
    found = walk(turns=TURNS[:1], variants=("permitting",), stored=False)

    assert a_cycle(found, lambda edge: not (edge.edited or edge.person or edge.again)) is not None
