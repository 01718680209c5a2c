"""The clear column of an entry: what a step was about, without a word of content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codec.commands import CallModel, CallTool, Finish, Suspend
from codec.decisions import Decision
from codec.events import (
    CancelRequested,
    DecisionGiven,
    Event,
    InputGiven,
    ModelFailed,
    ModelReplied,
    OutcomeGiven,
    RunResumed,
    ToolFailed,
    ToolReturned,
)
from codec.suspended import SuspendedRunState
from codec.vocabulary import QuestionKind, Verdict
from worker.core.work import Step

__all__ = ["Stepped", "decision_meta", "meta_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """An event, the state before it and what it led to."""

    before: SuspendedRunState | None
    event: Event
    result: Step


def meta_of(stepped: Stepped) -> dict[str, Any]:
    """Give the metadata of one entry: counts, classes, names and stable words."""
    event, result = stepped.event, stepped.result
    meta: dict[str, Any] = {"round": result.state.counters.rounds, "elapsed_ms": event.elapsed_ms}
    meta.update(_event_meta(stepped))
    for command in result.commands:
        meta.update(_command_meta(command))
    started = [command.tool for command in result.commands if isinstance(command, CallTool)]
    if started:
        meta["started"] = started
    refused = [d for d in result.decisions if d.verdict is not Verdict.PERMITTED]
    if refused:
        meta["decision"] = decision_meta(refused[-1])
    if result.stale:
        meta["stale"] = True
    return meta


def _event_meta(stepped: Stepped) -> dict[str, Any]:
    event = stepped.event
    match event:
        case RunResumed():
            return {"cause": event.cause}
        case ModelReplied():
            usage = event.reply.usage
            return {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "finish": event.reply.finish,
                "calls": len(event.reply.calls),
                "note": event.reply.note,
            }
        case ModelFailed() | ToolFailed():
            return {"failure": event.failure, **_tool_meta(stepped, getattr(event, "call", None))}
        case ToolReturned():
            return {"size": len(event.result.encode()), **_tool_meta(stepped, event.call)}
        case DecisionGiven():
            given = [v.approve for v in event.verdicts.values()]
            return {"by": event.decider.name, "approved": given.count(True), "denied": given.count(False)}
        case InputGiven() | OutcomeGiven():
            return {"by": event.decider.name}
        case CancelRequested():
            return {"by": event.by}
        case _:
            return {}


def _tool_meta(stepped: Stepped, call: str | None) -> dict[str, Any]:
    known = () if stepped.before is None else stepped.before.calls
    # Only a registered tool's name is a name; what a model made up is content.
    registered = () if stepped.before is None else tuple(t.name for t in stepped.before.facts.tools)
    name = next((c.name for c in known if c.id == call and c.name in registered), None)
    return {} if name is None else {"tool": name}


def _command_meta(command: object) -> dict[str, Any]:
    match command:
        case CallModel():
            target = command.permit.target
            sent = {"provider": target.identifier, "model": target.model, "zone": target.zone, "hop": command.hop}
            return {"send": {**sent, **_judged(command.permit.decision)}}
        case Suspend(kind=QuestionKind() as kind):
            asked: dict[str, Any] = {"question": {"kind": kind, "number": command.number}}
            return asked if command.blocked is None else {**asked, "blocked": command.blocked}
        case Suspend():
            return {"parked": command.parked}
        case Finish():
            return {"final": command.reason}
        case _:
            return {}


def _judged(decision: Decision) -> dict[str, Any]:
    return {"verdict": decision.verdict, "data_class": decision.data_class, "source": decision.source}


def decision_meta(decision: Decision) -> dict[str, Any]:
    """Give the content-free fields of a decision."""
    return {
        **_judged(decision),
        "zone": decision.zone,
        "ceiling": decision.ceiling,
        "provider": decision.provider,
        "mode": decision.mode,
    }
