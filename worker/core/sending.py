"""The only place that makes a `CallModel`: gate first, then limits, window and request."""

from __future__ import annotations

from codec.commands import CallModel, Permit
from codec.decisions import Decision
from codec.facts import ToolFacts
from codec.suspended import OpenSend
from codec.vocabulary import Phase, TerminationReason, Verdict
from worker.core.gate import decide, permit, route_of_hop
from worker.core.keys import derived_id, send_key
from worker.core.offering import offer
from worker.core.sources import carried_sources
from worker.core.turns import outgoing, request_hash
from worker.core.window import fit
from worker.core.work import Draft
from worker.core.zones import provider_of

__all__ = ["judge", "send"]


def judge(draft: Draft) -> Decision:
    """Decide about a send of this state now, and record it."""
    state = draft.state
    sources = carried_sources(state.facts, state.carried)
    return draft.decided(decide(state.facts, sources, state.policy, state.high_water))


def send(draft: Draft) -> None:
    """Gate, then send the next request of the run, or end it; also when the configuration or its owner is gone by now.

    A refusal here ends the run (`context_blocked`): whoever may still wait for a person is judged before, at the entry
    of the segment. The round cap turns the send into the synthesis, which offers no tools.
    """
    facts = draft.state.facts
    if facts.readable and facts.configuration is None:
        draft.finish(TerminationReason.CONFIGURATION_GONE)
        return
    decision = judge(draft)
    if decision.verdict is Verdict.REFUSED:
        draft.finish(TerminationReason.CONTEXT_BLOCKED)
        return
    if not facts.owner.enabled:
        draft.finish(TerminationReason.POLICY_DENIED)
        return
    if _spent(draft):
        draft.finish(TerminationReason.BUDGET_EXHAUSTED)
        return
    if provider_of(facts, route_of_hop(facts, draft.state.hop)) is None:
        draft.put(hop=0)  # the fallback that served has left the chain meanwhile
    allowed = permit(facts, decision, draft.state.hop)
    if allowed is None:
        draft.finish(TerminationReason.CONFIGURATION_GONE)
        return
    draft.put(synthesis=draft.state.counters.rounds >= draft.state.limits.rounds)
    _send(draft, allowed, _tools(draft))


def _spent(draft: Draft) -> bool:
    counters, limits = draft.state.counters, draft.state.limits
    tokens = counters.input_tokens + counters.output_tokens
    if limits.tokens and tokens >= limits.tokens:
        return True
    return bool(limits.duration_ms) and counters.elapsed_ms >= limits.duration_ms


def _tools(draft: Draft) -> tuple[ToolFacts, ...]:
    if draft.state.synthesis:
        return ()
    offered = offer(draft.state.facts, draft.state.allowed_tool_names)
    for denial in offered.denials:
        draft.denied(denial)
    return offered.tools


def _send(draft: Draft, allowed: Permit, tools: tuple[ToolFacts, ...]) -> None:
    state = draft.state
    route = route_of_hop(state.facts, state.hop)
    fitted = fit(
        state.transcript,
        tools,
        context_length=0 if route is None else route.context_length,
        max_tokens=state.options.max_tokens,
        calibration=state.calibration,
    )
    if fitted.overflow:
        draft.finish(TerminationReason.CONTEXT_TRUNCATED)
        return
    model = allowed.target.model
    identity = derived_id(draft.event.nonce, "send")
    draft.put(
        phase=Phase.MODEL,
        transcript=fitted.messages,
        send=OpenSend(id=identity, estimate=fitted.estimate),
        question=None,
        blocked=None,
    )
    draft.commands.append(
        CallModel(
            send=identity,
            permit=allowed,
            round=state.counters.rounds + 1,
            hop=state.hop,
            length=len(fitted.messages),
            offered=tuple(tool.name for tool in tools),
            request_hash=request_hash(outgoing(fitted.messages, tools, state.options, model), model),
            key=send_key(state.seed, identity),
        )
    )
