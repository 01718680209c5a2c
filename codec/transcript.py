"""The conversation: messages, the calls that a model asked for, and what a model answered."""

from __future__ import annotations

import msgspec

from codec.vocabulary import FinishReason, Role

__all__ = ["Message", "ModelReply", "RawCall", "SignedPart", "ToolCall", "Usage"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call inside an assistant message. `arguments` is the text that the model wrote, undecoded."""

    id: str
    name: str
    arguments: str


class SignedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reasoning that only the model that made it can read back; dropped when another model serves."""

    served_by: str
    data: str


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message. `tool_calls` only on assistant, `tool_call_id` only on tool messages."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    signed: tuple[SignedPart, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tokens as the provider counted them; 0 when it does not say."""

    input_tokens: int = 0
    output_tokens: int = 0


class RawCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call as a provider sent it: anything may be empty, `arguments` is raw text."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One whole answer of a model. `model` is the provider's name for what served it."""

    text: str = ""
    calls: tuple[RawCall, ...] = ()
    usage: Usage = Usage()
    finish: FinishReason = FinishReason.STOP
    model: str = ""
    note: str = ""
    signed: tuple[SignedPart, ...] = ()
