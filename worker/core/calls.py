"""Tool calls: from what a model wrote to calls that may be asked about, released, or answered with an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from codec.decisions import Decision, ToolDenial
from codec.errors import CodecError
from codec.facts import Facts, ToolFacts
from codec.suspended import Call, SuspendedRunState
from codec.text import dump_json, parse_object
from codec.transcript import ModelReply, RawCall
from codec.vocabulary import CallStatus, DeclaredClass, FinishReason, ToolEffect, Verdict
from worker.core.keys import call_key
from worker.core.offering import egress_decision, offer, tool_named
from worker.core.schemas import is_valid, overlay, properties_of, without_properties
from worker.core.sources import carried_sources

__all__ = ["Checked", "arguments_of", "calls_of_reply", "check", "failed", "refreshed"]

_EFFECTS = list(ToolEffect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether a call may go through now: `problem` is an error for the model, None when it may."""

    problem: str | None = None
    arguments: str = ""
    decision: Decision | None = None
    denial: ToolDenial | None = None


def failed(call: Call, text: str) -> Call:
    """Answer a call with an error."""
    return msgspec.structs.replace(call, status=CallStatus.DONE, result=f"Error: {text}", error=True)


def calls_of_reply(state: SuspendedRunState, reply: ModelReply) -> tuple[Call, ...]:
    """Make the turn's calls. Ids that are empty, or that the run has seen before, are replaced by ours."""
    used = {call.id for message in state.transcript for call in message.tool_calls}
    turn = state.counters.turns + 1
    found: list[Call] = []
    for index, raw in enumerate(reply.calls):
        name = raw.id if raw.id and raw.id not in used else _own_id(turn, index, used)
        used.add(name)
        found.append(_call(state, raw, name, turn, index, cut=_is_cut(reply)))
    return tuple(found)


def arguments_of(call: Call) -> str:
    """Give the arguments that stand: what a person approved, else what the model proposed."""
    return call.proposed if call.approved is None else call.approved


def check(state: SuspendedRunState, call: Call) -> Checked:
    """Judge a call under the live facts: policy, allow-list, arguments, schema, egress. Pure."""
    tool = tool_named(state.facts, call.name)
    problem, denial = _not_offered(state, call.name)
    if tool is None or problem is not None:
        return Checked(problem=problem or _gone(call.name), denial=denial)
    try:
        arguments, schema = _expected(call, tool, parse_object(arguments_of(call), "arguments"))
    except CodecError as error:
        return Checked(problem=f"the arguments of {call.name} cannot be used: {error.problem}.")
    if not is_valid(schema, arguments):
        return Checked(problem=f"the arguments of {call.name} do not fit its schema.")
    sources = carried_sources(state.facts, state.carried)
    decision = egress_decision(state.facts, tool, arguments, sources, state.policy)
    if decision is not None and decision.verdict is Verdict.REFUSED:
        return Checked(problem=f"{call.name} may not reach that place with what this run carries.", decision=decision)
    return Checked(arguments=dump_json(arguments), decision=decision)


def refreshed(facts: Facts, call: Call) -> Call:
    """Fold what was recorded about a call with what its tool declares now, to the stricter, and place it anew.

    Only a call that is held or ready moves: to a preview or a question when it turns out to need one.
    """
    tool = tool_named(facts, call.name)
    if tool is None:
        return call
    effect = max(call.effect, tool.effect, key=_EFFECTS.index)
    call = msgspec.structs.replace(call, effect=effect, gated=call.gated or tool.gated or effect.is_write)
    if call.status not in (CallStatus.HELD, CallStatus.READY):
        return call
    return msgspec.structs.replace(call, status=_place(call, tool))


def _place(call: Call, tool: ToolFacts) -> CallStatus:
    if call.gated and not call.decided:
        return CallStatus.PREVIEW if tool.preview and call.preview is None else CallStatus.ASK
    if tool.input_schema is not None and call.supplied is None:
        return CallStatus.NEED_INPUT
    return call.status


def _own_id(turn: int, index: int, used: set[str]) -> str:
    name = f"call_{turn}_{index}"
    while name in used:
        name += "_"
    return name


def _is_cut(reply: ModelReply) -> bool:
    return reply.finish in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


def _call(state: SuspendedRunState, raw: RawCall, name: str, turn: int, index: int, *, cut: bool) -> Call:
    tool = tool_named(state.facts, raw.name)
    call = Call(
        id=name,
        name=raw.name,
        proposed=raw.arguments,
        status=CallStatus.HELD,
        effect=ToolEffect.NON_IDEMPOTENT_WRITE if tool is None else tool.effect,
        key=call_key(state.seed, state.run, turn, index),
        gated=False,
        data_class=DeclaredClass.SECRET_ADJACENT if tool is None else tool.data_class,
    )
    if cut:
        return failed(call, "the answer was cut before this call was complete. It was not executed.")
    return call


def _gone(name: str) -> str:
    return f"there is no tool named {name}."


def _not_offered(state: SuspendedRunState, name: str) -> tuple[str | None, ToolDenial | None]:
    if not state.facts.readable or not state.facts.owner.enabled:
        return f"{name} is not available to this run.", None
    offered = offer(state.facts, state.allowed_tool_names)
    if name in offered.names:
        return None, next((d for d in offered.denials if d.tool == name), None)
    if tool_named(state.facts, name) is None:
        return _gone(name), None
    denial = next((d for d in offered.denials if d.tool == name), None)
    return f"{name} is not available to this run.", denial


def _expected(call: Call, tool: ToolFacts, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    if tool.input_schema is None:
        return arguments, tool.parameters
    if call.supplied is not None:
        return overlay(arguments, tool.input_schema, parse_object(call.supplied, "input")), tool.parameters
    names = properties_of(tool.input_schema)
    own = {key: value for key, value in arguments.items() if key not in names}
    return own, without_properties(tool.parameters, names)
