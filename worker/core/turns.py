"""What leaves with a send: redacted messages, offered tools, options. Pure, so that replay computes the same hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from codec.commands import CallModel
from codec.facts import Facts, ToolFacts
from codec.request import ModelOptions
from codec.suspended import SuspendedRunState
from codec.transcript import Message
from worker.core.redaction import redact

__all__ = ["Outgoing", "outgoing", "outgoing_of", "request_hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it leaves."""

    messages: tuple[Message, ...]
    tools: tuple[ToolFacts, ...]
    options: ModelOptions


def outgoing(
    transcript: tuple[Message, ...], tools: tuple[ToolFacts, ...], options: ModelOptions, model: str
) -> Outgoing:
    """Redact every message and drop signed parts that another model made."""
    return Outgoing(messages=tuple(_message(m, model) for m in transcript), tools=tools, options=options)


def outgoing_of(state: SuspendedRunState, command: CallModel) -> Outgoing:
    """Rebuild what a committed send stands for, from the state it left behind."""
    tools = _named(state.facts, command.offered)
    return outgoing(state.transcript[: command.length], tools, state.options, command.permit.target.model)


def request_hash(request: Outgoing, model: str) -> str:
    """SHA-256 over model, messages, tools and options as sent. Law: equal requests, equal hashes."""
    digest = hashlib.sha256()
    for part in (model, request.messages, request.tools, request.options):
        encoded = msgspec.json.encode(part)
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def _named(facts: Facts, names: tuple[str, ...]) -> tuple[ToolFacts, ...]:
    return tuple(tool for tool in facts.tools if tool.name in names)


def _message(message: Message, model: str) -> Message:
    calls = tuple(msgspec.structs.replace(call, arguments=redact(call.arguments)) for call in message.tool_calls)
    signed = tuple(part for part in message.signed if part.served_by == model)
    return Message(
        role=message.role,
        content=redact(message.content),
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        signed=signed,
    )
