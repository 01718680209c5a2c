"""The machine: `step(state, event) -> Step`. Pure and total; the table of phases and events is data.

Every driver (queue, playground, resume, replay) goes through this one function. What stands in no cell is a
`ProtocolError` and leaves the state untouched; answers to what is no longer open are stale, not errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from codec.actor import ANONYMOUS, LiveActor
from codec.events import (
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
from codec.facts import Facts
from codec.request import ModelOptions
from codec.suspended import STATE_VERSION, Limits, SuspendedRunState
from codec.vocabulary import STATUS_OF, Enforcement, Phase, RunStatus, TerminationReason
from worker.core import answering, replies, transitions
from worker.core.errors import ProtocolError
from worker.core.window import FIRST_CALIBRATION
from worker.core.work import Draft, Step

__all__ = ["EVENTS", "STALE", "TABLE", "continued", "phase_of", "step"]

_Transition = Callable[[Draft, Any], None]


def _cancel(draft: Draft, _: CancelRequested) -> None:
    """End the run as cancelled."""
    draft.finish(TerminationReason.CANCELLED)


def _expire(draft: Draft, _: Expired) -> None:
    """End the run: the open question's time ran out."""
    draft.finish(TerminationReason.EXPIRED)


def _corrupt(draft: Draft, _: StateCorrupted) -> None:
    """End the run as corrupt."""
    draft.finish(TerminationReason.CORRUPT)


def _late(draft: Draft, _: Event) -> None:
    """Stale: comes too late and changes nothing."""
    draft.late()


STALE: Final[_Transition] = _late
"""The cell of an event that comes too late to matter."""

EVENTS: Final[tuple[type[Any], ...]] = (
    RunStarted,
    RunResumed,
    PolicyReplaced,
    ModelReplied,
    ModelFailed,
    ToolReturned,
    ToolFailed,
    Previewed,
    DecisionGiven,
    InputGiven,
    OutcomeGiven,
    CancelRequested,
    Expired,
    StateCorrupted,
)

_ANSWERS_LATE: Final[dict[type[Any], _Transition]] = {
    ModelReplied: STALE,
    ModelFailed: STALE,
    ToolReturned: STALE,
    ToolFailed: STALE,
    Previewed: STALE,
    DecisionGiven: STALE,
    InputGiven: STALE,
    OutcomeGiven: STALE,
    Expired: STALE,
}
_ALWAYS: Final[dict[type[Any], _Transition]] = {
    PolicyReplaced: transitions.policy_replaced,
    CancelRequested: _cancel,
    StateCorrupted: _corrupt,
}

TABLE: Final[dict[Phase, dict[type[Any], _Transition]]] = {
    Phase.NEW: {CancelRequested: _cancel, StateCorrupted: _corrupt},
    Phase.MODEL: {
        **_ANSWERS_LATE,
        **_ALWAYS,
        RunResumed: transitions.resume_working,
        ModelReplied: replies.model_replied,
        ModelFailed: replies.model_failed,
    },
    Phase.TOOLS: {
        **_ANSWERS_LATE,
        **_ALWAYS,
        RunResumed: transitions.resume_tools,
        ToolReturned: transitions.tool_returned,
        ToolFailed: transitions.tool_failed,
        Previewed: transitions.previewed,
    },
    Phase.WAITING: {
        **_ANSWERS_LATE,
        **_ALWAYS,
        RunResumed: transitions.resume_waiting,
        DecisionGiven: answering.decision_given,
        InputGiven: answering.input_given,
        OutcomeGiven: answering.outcome_given,
        Expired: _expire,
    },
    Phase.PARKED: {**_ANSWERS_LATE, **_ALWAYS, RunResumed: transitions.resume_working},
    Phase.DONE: {
        **_ANSWERS_LATE,
        ModelReplied: replies.reply_after_end,
        PolicyReplaced: STALE,
        CancelRequested: STALE,
        StateCorrupted: STALE,
    },
}
"""Every allowed pair besides `NEW × RunStarted`, which makes the state. `docs/states.md` is generated from it."""


def phase_of(state: SuspendedRunState | None) -> Phase:
    """Give the phase; a run without any entry is new."""
    return Phase.NEW if state is None else state.phase


def step(state: SuspendedRunState | None, event: Event) -> Step:
    """Fold one event into a run.

    Shape: `state` None = a run without entries. Errors: `ProtocolError` for a pair that the table does not have; the
    state is a value and stays as it was. Laws: deterministic; a step from the stored and loaded state is the same; no
    command to send exists without the gate's permit.
    """
    if state is None and isinstance(event, RunStarted):
        return transitions.start(event).step()
    transition = TABLE[phase_of(state)].get(type(event))
    if transition is None:
        raise ProtocolError(phase_of(state), type(event).__name__)
    draft = Draft(state=_never_started(event) if state is None else state, event=event)
    _observe(draft, event)
    before = draft.state
    transition(draft, event)
    if draft.stale:
        return Step(state=before if state is None else state, stale=True)
    return draft.step()


def _observe(draft: Draft, event: Event) -> None:
    state = draft.state
    elapsed = max(state.counters.elapsed_ms, event.elapsed_ms)
    barren = state.counters.barren if isinstance(event, RunResumed | PolicyReplaced) else 0
    draft.put(policy=event.policy, counters=msgspec.structs.replace(state.counters, elapsed_ms=elapsed, barren=barren))


def _never_started(event: Event) -> SuspendedRunState:
    """Stand for a run that ends before it was composed: it was given nothing and carries nothing."""
    return SuspendedRunState(
        version=STATE_VERSION,
        run="",
        phase=Phase.NEW,
        seed="0" * 32,
        owner=ANONYMOUS,
        configuration=0,
        allowed_tool_names=(),
        options=ModelOptions(),
        forced_snippet_uids=(),
        forced_skill_uids=(),
        transcript=(),
        lead=0,
        carried=(),
        dropped=(),
        calls=(),
        counters=transitions.counters_at(0),
        limits=Limits(rounds=1, tokens=0, duration_ms=0, remote_calls=0, retries=0),
        send=None,
        hop=0,
        retries=0,
        synthesis=False,
        calibration=FIRST_CALIBRATION,
        question=None,
        blocked=None,
        reason=None,
        high_water=None,
        noted=(),
        facts=Facts(enforcement=Enforcement.ENFORCE, owner=LiveActor(kind=ANONYMOUS.kind, name=ANONYMOUS.name)),
        policy=event.policy,
    )


def continued(state: SuspendedRunState, run: str) -> SuspendedRunState:
    """Give the state that a requeued run begins with: the failed run's, where it stopped, under a new name.

    Open calls keep their keys and are met as after a crash; carried sources, limits and counters travel.
    Errors: `ProtocolError` when the run did not fail.
    """
    failed = state.reason is not None and STATUS_OF[state.reason] is RunStatus.FAILED
    if state.phase is not Phase.DONE or not failed or state.configuration == 0:
        raise ProtocolError(state.phase, "requeue")
    counters = msgspec.structs.replace(state.counters, barren=0, overdue=0)
    return msgspec.structs.replace(
        state,
        run=run,
        phase=Phase.TOOLS if state.calls else Phase.PARKED,
        reason=None,
        hop=0,
        retries=0,
        noted=(),
        counters=counters,
    )
