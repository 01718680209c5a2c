"""Transitions of a run that works: starting, resuming, and what models and tools answer."""

from __future__ import annotations

from typing import Final

import msgspec

from codec.commands import Preview
from codec.decisions import Decision
from codec.events import (
    PolicyReplaced,
    Previewed,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolReturned,
)
from codec.facts import Facts
from codec.suspended import STATE_VERSION, Blocked, Call, CallPreview, Counters, Limits, SuspendedRunState
from codec.vocabulary import (
    BlockedReason,
    CallStatus,
    DeclaredClass,
    FailureClass,
    Phase,
    ResumeCause,
    Role,
    TerminationReason,
    ToolEffect,
    Verdict,
)
from worker.core.assembly import assemble
from worker.core.calls import failed
from worker.core.offering import tool_named
from worker.core.people import holds
from worker.core.replies import expired_again
from worker.core.sending import judge, send
from worker.core.settling import ask_again, change_call, settle
from worker.core.sources import gone_carried
from worker.core.window import FIRST_CALIBRATION
from worker.core.work import Draft
from worker.core.zones import strictest

__all__ = [
    "CRASH_CAP",
    "counters_at",
    "policy_replaced",
    "previewed",
    "resume_tools",
    "resume_waiting",
    "resume_working",
    "start",
    "tool_failed",
    "tool_returned",
]

CRASH_CAP: Final = 5
"""Recovered segments in a row that added nothing but their start; then the run ends, so that a run that kills its
process does not take its neighbours for ever."""
_MAX_ROUNDS: Final = 200
"""Ceiling of the rounds of any run; a state with more, or with none, could not be read back."""
_REMOTE_CALLS: Final = 20
"""Remote tool calls of a run (the reference system's figure)."""


def start(event: RunStarted) -> Draft:
    """Compose the run and send its first request, or end it: gone configuration, owner without rights, refused.

    A dry run is composed and sends nothing, whoever brought it here.
    """
    draft = Draft(state=_composed(event), event=event)
    augmentation = event.request.augmentation
    if augmentation is not None and augmentation.dry_run:
        draft.finish(TerminationReason.COMPLETED)
        return draft
    problem = _problem(draft)
    if problem is None and not _may_start(event):
        draft.finish(TerminationReason.POLICY_DENIED)
    elif problem is None:
        send(draft)
    else:
        draft.finish(_REASON_OF[problem.reason])
    return draft


def _may_start(event: RunStarted) -> bool:
    """Whether the owner's rights, those it had and still has, cover what the request asks for."""
    owner, request = event.facts.owner, event.request
    augmentation = request.augmentation
    forces = augmentation is not None and bool(
        augmentation.forced_snippet_uids or augmentation.forced_skill_uids or augmentation.system_prompt_override
    )
    forces = forces or any(message.role is Role.SYSTEM for message in request.messages)
    return holds(owner, "runs:start") and (not forces or holds(owner, "sources:force"))


def _composed(event: RunStarted) -> SuspendedRunState:
    request, facts = event.request, event.facts
    assembly = assemble(request, facts, event.texts)
    augmentation = request.augmentation
    snippets = () if augmentation is None else augmentation.forced_snippet_uids
    skills = () if augmentation is None else augmentation.forced_skill_uids
    return SuspendedRunState(
        version=STATE_VERSION,
        run=event.run,
        phase=Phase.NEW,
        seed=event.nonce,
        owner=request.actor,
        configuration=int(request.configuration),
        allowed_tool_names=request.allowed_tool_names,
        options=request.options,
        forced_snippet_uids=tuple(int(uid) for uid in snippets),
        forced_skill_uids=tuple(int(uid) for uid in skills),
        transcript=assembly.transcript,
        lead=assembly.lead,
        carried=assembly.carried,
        dropped=assembly.dropped,
        calls=(),
        counters=counters_at(event.elapsed_ms),
        limits=_limits(facts, request.max_iterations, event.retries),
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
        facts=facts,
        policy=event.policy,
    )


_REASON_OF: Final = {
    BlockedReason.CONTEXT: TerminationReason.CONTEXT_BLOCKED,
    BlockedReason.CATALOGUE: TerminationReason.CONTEXT_BLOCKED,
    BlockedReason.CONFIGURATION_GONE: TerminationReason.CONFIGURATION_GONE,
    BlockedReason.OWNER: TerminationReason.POLICY_DENIED,
}


def counters_at(elapsed_ms: int) -> Counters:
    """Give the counters of a run that has used nothing but time."""
    return Counters(
        rounds=0,
        input_tokens=0,
        output_tokens=0,
        remote_calls=0,
        elapsed_ms=elapsed_ms,
        turns=0,
        questions=0,
        barren=0,
        overdue=0,
    )


def _limits(facts: Facts, requested: int | None, retries: int) -> Limits:
    configuration = facts.configuration
    cap = 10 if configuration is None else configuration.max_iterations
    return Limits(
        rounds=max(1, min(cap, _MAX_ROUNDS, cap if requested is None else requested)),
        tokens=0 if configuration is None else configuration.max_total_tokens,
        duration_ms=0 if configuration is None else configuration.max_duration_s * 1000,
        remote_calls=_REMOTE_CALLS,
        retries=retries,
    )


def _problem(draft: Draft, *, gated: bool = False) -> Blocked | None:
    """Say what stands against acting at the entry of a segment, the gate last and only when asked to judge here."""
    facts = draft.state.facts
    if not facts.readable:
        return Blocked(reason=BlockedReason.CATALOGUE, decision=judge(draft))
    if facts.configuration is None:
        return Blocked(reason=BlockedReason.CONFIGURATION_GONE, decision=None)
    if not facts.owner.enabled:
        return Blocked(reason=BlockedReason.OWNER, decision=None)
    if not gated:
        return None
    decision: Decision = judge(draft)
    return Blocked(reason=BlockedReason.CONTEXT, decision=decision) if decision.verdict is Verdict.REFUSED else None


def policy_replaced(draft: Draft, event: PolicyReplaced) -> None:
    """Go on under other facts; what follows is judged by them.

    A run that waits and is refused now is blocked before an answer is folded; only a resume unblocks it.
    """
    _take_facts(draft, event.facts)
    if draft.state.phase is Phase.WAITING:
        blocked = _problem(draft, gated=True)
        if blocked is not None:
            draft.put(blocked=blocked)
            ask_again(draft)


def resume_working(draft: Draft, event: RunResumed) -> None:
    """Recover an open send, or retry a parked one: gated and sent again as another send."""
    if _enter(draft, event):
        send(draft)


def resume_tools(draft: Draft, event: RunResumed) -> None:
    """Recover open calls: previews and repeatable calls are repeated, an open non-idempotent one is unknown.

    After a drain nothing that is open was performed, so everything is simply performed.
    """
    if not _enter(draft, event, gated=True):
        return
    lost = {call.id for call in draft.state.calls if call.status is CallStatus.PREVIEW}
    # A drained segment released the run with its last commands committed and none of them performed.
    drained = event.cause is ResumeCause.DRAIN
    for call in draft.state.calls:
        if call.status is CallStatus.OPEN:
            once = not drained and _once(draft, call, ToolEffect.NON_IDEMPOTENT_WRITE)
            status = CallStatus.UNKNOWN if once else CallStatus.READY
            change_call(draft, msgspec.structs.replace(call, status=status))
    settle(draft)
    for call in draft.state.calls:
        if call.id in lost and call.status is CallStatus.PREVIEW:  # settling answers those that may not run any more
            draft.commands.append(Preview(call=call.id, tool=call.name))


def _once(draft: Draft, call: Call, unregistered: ToolEffect) -> bool:
    """Whether a call may happen once only, by what was recorded about it or by what its tool declares now."""
    tool = tool_named(draft.state.facts, call.name)
    return ToolEffect.NON_IDEMPOTENT_WRITE in (call.effect, unregistered if tool is None else tool.effect)


def resume_waiting(draft: Draft, event: RunResumed) -> None:
    """Judge before the answer is folded: refused, the run waits on, `blocked`, and the answer stays unspent."""
    if event.facts is not None:
        _take_facts(draft, event.facts)
    if not _count_segment(draft, event):
        return
    draft.put(blocked=_problem(draft, gated=True))
    ask_again(draft)


def _enter(draft: Draft, event: RunResumed, *, gated: bool = False) -> bool:
    if event.facts is not None:
        _take_facts(draft, event.facts)
    if not _count_segment(draft, event):
        return False
    problem = _problem(draft, gated=gated)
    if problem is not None:
        draft.finish(_REASON_OF[problem.reason])
        return False
    return True


def _count_segment(draft: Draft, event: RunResumed) -> bool:
    if event.cause is not ResumeCause.RECOVERY:
        draft.count(barren=0)
        return True
    draft.count(barren=draft.state.counters.barren + 1)
    if draft.state.counters.barren > CRASH_CAP:
        draft.finish(TerminationReason.RETRIES_EXHAUSTED)
        return False
    return True


def _take_facts(draft: Draft, facts: Facts) -> None:
    draft.put(facts=facts)
    if not facts.readable:
        return
    known = {(d.kind, d.uid) for d in draft.state.dropped}
    gone = [d for d in gone_carried(facts, draft.state.carried) if (d.kind, d.uid) not in known]
    if gone:
        draft.put(dropped=(*draft.state.dropped, *gone))


def tool_returned(draft: Draft, event: ToolReturned) -> None:
    """Take a call's result; its class joins the high-water mark."""
    call = _find(draft, event.call, CallStatus.OPEN)
    if call is None:
        return
    draft.count(overdue=0)
    draft.put(high_water=strictest(draft.state.high_water, _returned_class(draft, call)))
    change_call(draft, msgspec.structs.replace(call, status=CallStatus.DONE, result=event.result))
    settle(draft)


def _returned_class(draft: Draft, call: Call) -> DeclaredClass | None:
    live = next((t.data_class for t in draft.state.facts.tools if t.name == call.name), None)
    return strictest(call.data_class, live)


def tool_failed(draft: Draft, event: ToolFailed) -> None:
    """Meet a failed call: an error result, or an unknown outcome when it may have written once and for all."""
    call = _find(draft, event.call, CallStatus.OPEN)
    if call is None:
        return
    if expired_again(draft, event.failure):
        change_call(draft, msgspec.structs.replace(call, status=CallStatus.HELD, executed=None))
    elif event.failure in (FailureClass.NOT_EXECUTED, FailureClass.PERMIT_EXPIRED):
        change_call(draft, failed(call, f"{call.name} did nothing."))
    elif _once(draft, call, call.effect):
        change_call(draft, msgspec.structs.replace(call, status=CallStatus.UNKNOWN))
    else:
        change_call(draft, failed(call, f"{call.name} failed."))
    settle(draft)


def previewed(draft: Draft, event: Previewed) -> None:
    """Take a preview; the call is asked about next."""
    call = _find(draft, event.call, CallStatus.PREVIEW)
    if call is None:
        return
    preview = CallPreview(lines=event.lines, failed=event.failed)
    change_call(draft, msgspec.structs.replace(call, status=CallStatus.ASK, preview=preview))
    settle(draft)


def _find(draft: Draft, identity: str, status: CallStatus) -> Call | None:
    call = next((c for c in draft.state.calls if c.id == identity and c.status is status), None)
    if call is None:
        draft.late()
    return call
