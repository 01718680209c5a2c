"""Performing commands: the one place where a permit meets the world, and where its age is checked.

A send or a call that is older than its permit allows is not performed; it comes back as an event and is judged again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from codec.commands import CallModel, CallTool, Preview
from codec.errors import CodecError
from codec.suspended import Call, SuspendedRunState
from codec.text import clean_text
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass
from worker.core.turns import outgoing_of
from worker.ports.models import ModelRequest, ModelSendError
from worker.ports.timeliness import performing
from worker.ports.toolbox import ToolCallInfo, ToolFault
from worker.runtime.hold import Hold
from worker.runtime.parts import PERMIT_TTL_S, Parts

__all__ = ["Answered", "Failed", "Outcome", "Previewing", "Returned", "perform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A send was answered."""

    send: str
    reply: ModelReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A send (`send`) or a call (`call`) failed. Units: `not_before_ms` from a Retry-After."""

    failure: FailureClass
    send: str | None = None
    call: str | None = None
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A call returned."""

    call: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Previewing:
    """A preview is there."""

    call: str
    lines: tuple[str, ...]
    failed: bool


Outcome = Answered | Failed | Returned | Previewing


async def perform(
    parts: Parts, hold: Hold, state: SuspendedRunState, command: CallModel | CallTool | Preview, committed_at: float
) -> Outcome:
    """Perform one committed command and say what came of it. Never raises but for cancellation.

    Units: `committed_at` is the monotonic second just before the commit's transaction read the policy.
    """
    match command:
        case CallModel():
            return await _send(parts, state, command, committed_at)
        case CallTool():
            return await _call(parts, hold, state, command, committed_at)
        case Preview():
            call = _find(state, command.call)
            lines, failed = await parts.toolbox.preview(call.name, _arguments(call), _info(state, call))
            return Previewing(call=call.id, lines=lines, failed=failed)


async def _send(parts: Parts, state: SuspendedRunState, command: CallModel, committed_at: float) -> Outcome:
    def timely() -> bool:
        return _within_ttl(parts, committed_at)

    if not timely():
        return Failed(failure=FailureClass.PERMIT_EXPIRED, send=command.send)
    leaving = outgoing_of(state, command)
    request = ModelRequest(
        run=state.run,
        round=command.round,
        hop=command.hop,
        key=command.key,
        messages=leaving.messages,
        tools=leaving.tools,
        options=leaving.options,
    )
    try:
        async with asyncio.timeout(parts.figures.send_timeout_s):
            with performing(timely):
                reply = await parts.models.send(command.permit, request, None)
        return Answered(send=command.send, reply=_clean(reply))
    except ModelSendError as error:
        return Failed(failure=error.failure, send=command.send, not_before_ms=error.not_before_ms)
    except TimeoutError:
        return Failed(failure=FailureClass.CONNECTION, send=command.send)
    except CodecError:
        return Failed(failure=FailureClass.INVALID_REPLY, send=command.send)
    except Exception as error:  # noqa: BLE001 - a provider's adapter is a stranger; its fault must become an event
        parts.log("model.raised", {"run": state.run, "error": type(error).__name__})
        return Failed(failure=FailureClass.UNKNOWN, send=command.send)


def _clean(reply: ModelReply) -> ModelReply:
    """Normalise a reply's texts at the one place where they enter. Errors: `CodecError`."""
    calls = tuple(
        type(call)(
            id=clean_text(call.id, "reply"),
            name=clean_text(call.name, "reply"),
            arguments=_clean_arguments(call.arguments),
        )
        for call in reply.calls
    )
    return ModelReply(
        text=clean_text(reply.text, "reply"),
        calls=calls,
        usage=reply.usage,
        finish=reply.finish,
        model=clean_text(reply.model, "reply"),
        note=clean_text(reply.note, "reply"),
        signed=reply.signed,
    )


def _clean_arguments(raw: str) -> str:
    # Cleaning could turn what is no JSON (a raw NUL inside a string) into JSON; what had to be cleaned stays unusable.
    cleaned = clean_text(raw, "reply")
    return cleaned if cleaned == raw else f"\ufffd{cleaned}"


async def _call(parts: Parts, hold: Hold, state: SuspendedRunState, command: CallTool, committed_at: float) -> Outcome:
    call = _find(state, command.call)
    if not _timely(parts, hold, command, committed_at):
        return Failed(failure=FailureClass.PERMIT_EXPIRED, call=call.id)
    try:
        with performing(lambda: _timely(parts, hold, command, committed_at)):
            result = await parts.toolbox.call(command.tool, _arguments(call), _info(state, call), command.timeout_ms)
        return Returned(call=call.id, result=result)
    except ToolFault as fault:
        return Failed(failure=fault.failure, call=call.id)
    except Exception as error:  # noqa: BLE001 - a toolbox is a stranger; its fault must become an event
        parts.log("tool.raised", {"run": state.run, "tool": command.tool, "error": type(error).__name__})
        return Failed(failure=FailureClass.RAISED, call=call.id)


def _within_ttl(parts: Parts, committed_at: float) -> bool:
    # A permit must not outlive half of a short lease either: afterwards the run may be somebody else's.
    ttl = min(PERMIT_TTL_S, parts.figures.lease_s / 2)
    return parts.clock.monotonic() - committed_at <= ttl


def _timely(parts: Parts, hold: Hold, command: CallTool, committed_at: float) -> bool:
    if not _within_ttl(parts, committed_at):
        return False
    now = parts.clock.monotonic()
    # Whoever was paused may have lost the run meanwhile: a write needs a fresh proof that the lease is ours.
    proved = max(committed_at, hold.proved_at)
    return not command.effect.is_write or now - proved <= parts.figures.lease_s / 2


def _find(state: SuspendedRunState, identity: str) -> Call:
    return next(call for call in state.calls if call.id == identity)


def _arguments(call: Call) -> str:
    if call.executed is not None:
        return call.executed
    return call.proposed if call.approved is None else call.approved


def _info(state: SuspendedRunState, call: Call) -> ToolCallInfo:
    return ToolCallInfo(run=state.run, call_id=call.id, key=call.key, actor=state.owner.name)
