"""Provider kind `scripted`: answers from a file, an honest stand-in for a model. Every answer says that it is one."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from codec.commands import Permit, Target
from codec.errors import CodecError
from codec.text import parse_object
from codec.transcript import Message, ModelReply, RawCall
from codec.vocabulary import FailureClass, Role
from worker.adapters.models.registry import failure_of_status
from worker.adapters.models.script import Reply, Script, ScriptError, check_script, read_script
from worker.ports.models import ModelRequest, ModelSendError

__all__ = ["NOTE", "ScriptError", "ScriptedModels", "check_script"]

NOTE: Final = "scripted"
"""The note in each reply, for everybody who reads the answer later."""

_RUN: Final = "{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """What tells one version of a file from the next."""

    modified_ns: int
    size: int


@dataclass(slots=True, kw_only=True)
class _Loaded:
    """A script as read, and how often each reply of it has failed for each provider."""

    stamp: _Stamp
    script: Script
    failed: dict[tuple[int, int], int] = field(default_factory=dict)


class ScriptedModels:
    """Sender of kind `scripted`. Reads a script again when the file changes; failures are then counted anew.

    `clock` gives epoch seconds for the record. Belongs to one event loop. The small local files of scripts are read
    and appended to right on it: a hop to a thread would take longer, and would mix up the order of the record.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._loaded: dict[str, _Loaded] = {}

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """Note the send, wait as long as the script says, then fail or answer as it says.

        Errors: `ModelSendError` with the status's class; `configuration` for a script or record that cannot be used.
        """
        target = permit.target
        try:
            loaded = self._load(target.script)
            if loaded.script.record is not None:
                _append(loaded.script.record, _record(target, request, self._clock()))
        except (ScriptError, OSError):
            raise ModelSendError(FailureClass.CONFIGURATION) from None
        said = sum(message.role is Role.ASSISTANT for message in request.messages)
        index = min(said, len(loaded.script.replies) - 1)
        reply = loaded.script.replies[index]
        failure = _failure(loaded, target, index, reply)
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        if failure is not None:
            raise ModelSendError(failure)
        answer = _answer(reply, request.run, target.model)
        if progress is not None and answer.text:
            progress(answer.text)
        return answer

    def _load(self, script: str | None) -> _Loaded:
        if not script:
            raise ScriptError("none is named")
        found = Path(script).stat()
        stamp = _Stamp(modified_ns=found.st_mtime_ns, size=found.st_size)
        loaded = self._loaded.get(script)
        if loaded is None or loaded.stamp != stamp:
            loaded = self._loaded[script] = _Loaded(stamp=stamp, script=read_script(Path(script)))
        return loaded


def _failure(loaded: _Loaded, target: Target, index: int, reply: Reply) -> FailureClass | None:
    """Count a failure of this reply, if one is due, before anything is awaited: sends overlap."""
    if reply.fail is None:
        return None
    failed = loaded.failed.get((target.provider, index), 0)
    if failed >= reply.fail.times:
        return None
    loaded.failed[target.provider, index] = failed + 1
    return failure_of_status(reply.fail.status)


def _answer(reply: Reply, run: str, model: str) -> ModelReply:
    return ModelReply(
        text=reply.text.replace(_RUN, run),
        calls=tuple(
            RawCall(id=call.id, name=call.name, arguments=call.arguments.replace(_RUN, run)) for call in reply.calls
        ),
        usage=reply.usage,
        finish=reply.finish,
        model=model,
        note=NOTE,
    )


def _record(target: Target, request: ModelRequest, at: float) -> bytes:
    line = {
        "run": request.run,
        "provider": target.identifier,
        "configuration": target.configuration,
        "model": target.model,
        "round": request.round,
        "hop": request.hop,
        "key": request.key,
        "at": at,
        "messages": [_message(message) for message in request.messages],
        "tools": [tool.name for tool in request.tools],
        "options": msgspec.to_builtins(request.options),
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role.value,
        "content": message.content,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": _decoded(call.arguments)} for call in message.tool_calls
        ],
        "tool_call_id": message.tool_call_id,
    }


def _decoded(arguments: str) -> dict[str, Any] | str:
    try:
        return parse_object(arguments, "arguments")
    except CodecError:
        return arguments


def _append(path: Path, line: bytes) -> None:
    """Add one line with one write: lines of several processes follow each other whole."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(opened, line) != len(line):
            raise OSError("the disk is full")
    finally:
        os.close(opened)
