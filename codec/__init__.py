"""Data of regate: everything that is stored or crosses a process. Depends on msgspec only and does no I/O."""

from __future__ import annotations

from codec.actor import ANONYMOUS, LOCAL, Actor
from codec.errors import CodecError, SchemaTooNewError
from codec.request import AgentRunRequest, Caller, ModelOptions, RunAugmentation
from codec.request_codec import AgentRunRequestCodec
from codec.suspended import SuspendedRunState
from codec.transcript import Message, ToolCall

__all__ = [
    "ANONYMOUS",
    "LOCAL",
    "Actor",
    "AgentRunRequest",
    "AgentRunRequestCodec",
    "Caller",
    "CodecError",
    "Message",
    "ModelOptions",
    "RunAugmentation",
    "SchemaTooNewError",
    "SuspendedRunState",
    "ToolCall",
]
