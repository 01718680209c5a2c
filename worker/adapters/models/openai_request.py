"""What is sent to an OpenAI-compatible server: one body, made of the permit's model and the request and nothing else.

Only words that every compatible server knows, and each option only when it is set: a server refuses what it does not
know. Signed parts of other models and the request's metadata (run, round, hop, key) stay here.
"""

from __future__ import annotations

from typing import Any, Final

from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.text import parse_object
from codec.transcript import Message, ToolCall
from codec.vocabulary import Role
from worker.ports.models import ModelRequest

__all__ = ["body_of"]

_THINK: Final = {True: "medium", False: "none"}
"""`think` as `reasoning_effort`: the interface's own word, and its own default for a model that reasons."""
_SCHEMA_NAME: Final = "reply"
"""A `json_schema` must have a name; models may see it."""


def body_of(model: str, request: ModelRequest) -> dict[str, Any]:
    """Make the body of one streamed send. Errors: `CodecError` for a tool whose schema is no JSON object."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:  # an empty list is refused
        body["tools"] = [_tool(tool) for tool in request.tools]
    return body | _options(request.options)


def _message(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        sent["content"] = message.content or None  # the interface's way to say that there are only calls
        sent["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role is Role.TOOL:
        sent["tool_call_id"] = message.tool_call_id or ""
    return sent


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: ToolFacts) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = parse_object(tool.parameters, "tool")
    return {"type": "function", "function": function}


def _options(options: ModelOptions) -> dict[str, Any]:
    schema = options.response_schema
    given: dict[str, Any] = {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "top_p": options.top_p,
        "stop": list(options.stop) if options.stop else None,
        "seed": options.seed,
        "reasoning_effort": None if options.think is None else _THINK[options.think],
        "response_format": None
        if schema is None
        else {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema}},
    }
    return {name: value for name, value in given.items() if value is not None}
