"""Queued requests: bytes that a run's row holds until it is composed, and back.

Identity over snapshot: catalogue entities travel as uids only and are read live when the run is composed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from codec.actor import Actor
from codec.documents import convert, encode_fields, read_versioned
from codec.errors import CodecError
from codec.request import AgentRunRequest, Caller, ModelOptions, RunAugmentation
from codec.text import clean_json, clean_text
from codec.transcript import Message, ToolCall
from codec.vocabulary import Role

__all__ = ["REQUEST_VERSION", "AgentRunRequestCodec", "clean_request"]

REQUEST_VERSION: Final = 1
"""1: first released form."""
_DOCUMENT: Final = "request"
_FIELDS: Final = frozenset(msgspec.structs.asdict(AgentRunRequest(configuration=1, messages=())))
_AUGMENTATION_FIELDS: Final = frozenset(msgspec.structs.asdict(RunAugmentation()))
_MAX_NAME: Final = 256


class AgentRunRequestCodec:
    """Pure and total: any bytes give a request or a `CodecError`, in bounded time and memory."""

    @staticmethod
    def dehydrate(request: AgentRunRequest) -> bytes:
        """Write a request, normalised by `clean_request`.

        Shape: one JSON object; `planned_cost`, `idempotency_key` and `caller` stand beside `options`, never inside.
        Errors: `CodecError` with the path of what cannot be stored, a forced source that is not yet a uid among it.
        """
        _check_resolved(request)
        fields: dict[str, Any] = msgspec.to_builtins(clean_request(request))
        return encode_fields({"version": REQUEST_VERSION, **fields}, _DOCUMENT)

    @staticmethod
    def rehydrate(data: bytes) -> AgentRunRequest:
        """Read a request. Law: `rehydrate(dehydrate(r)) == clean_request(r)`.

        Errors: `CodecError` for anything malformed, missing or unknown; a broken list never becomes an absent one.
        """
        version, fields = read_versioned(data, _DOCUMENT, REQUEST_VERSION)
        if version < 1:
            raise CodecError(_DOCUMENT, "$.version", "version 0 was never released")
        del fields["version"]
        _complete(fields, _FIELDS, "$")
        if isinstance(fields["augmentation"], dict):
            _complete(fields["augmentation"], _AUGMENTATION_FIELDS, "$.augmentation")
        request = convert(fields, AgentRunRequest, _DOCUMENT)
        _check_resolved(request)
        return clean_request(request)


def clean_request(request: AgentRunRequest) -> AgentRunRequest:
    """Normalise every text of a request and check what types cannot say.

    Errors: `CodecError` with the path: a message whose parts do not fit its role, an open tool call, a uid that is not
    positive, a number that is not finite, an over-long name. Law: idempotent.
    """
    _check_augmentation(request.augmentation)
    options = _options(request.options)
    _check_numbers(request)
    messages = tuple(_message(m, f"$.messages[{i}]") for i, m in enumerate(request.messages))
    _no_open_calls(messages)
    return msgspec.structs.replace(
        request,
        configuration=_reference(request.configuration, "$.configuration"),
        messages=messages,
        allowed_tool_names=_names(request.allowed_tool_names, "$.allowed_tool_names"),
        options=options,
        augmentation=_augmentation(request.augmentation),
        actor=_actor(request.actor),
        caller=_caller(request.caller),
        idempotency_key=_name_or_none(request.idempotency_key, "$.idempotency_key"),
        tags={_name(key, "$.tags"): clean_text(value, _DOCUMENT, "$.tags.*") for key, value in request.tags.items()},
    )


def _check_resolved(request: AgentRunRequest) -> None:
    # An identifier in a stored list could only be a broken uid, and a broken uid must not read as another source.
    if request.augmentation is None:
        return
    for field in ("forced_snippet_uids", "forced_skill_uids"):
        for index, value in enumerate(getattr(request.augmentation, field)):
            if not isinstance(value, int):
                raise CodecError(_DOCUMENT, f"$.augmentation.{field}[{index}]", "not a uid")


def _complete(fields: dict[str, Any], known: frozenset[str], path: str) -> None:
    missing = sorted(known - fields.keys())
    if missing:
        raise CodecError(_DOCUMENT, f"{path}.{missing[0]}", "a field is missing")


def _reference(value: int | str, path: str) -> int | str:
    if isinstance(value, str):
        return _name(value, path)
    if isinstance(value, bool) or not 0 < value < 2**63:
        raise CodecError(_DOCUMENT, path, "not a uid")
    return value


def _name(value: str, path: str) -> str:
    if not value or len(value) > _MAX_NAME:
        raise CodecError(_DOCUMENT, path, f"not a name of 1 to {_MAX_NAME} characters")
    return clean_text(value, _DOCUMENT, path)


def _name_or_none(value: str | None, path: str) -> str | None:
    return None if value is None else _name(value, path)


def _names(values: tuple[str, ...] | None, path: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    return tuple(_name(value, f"{path}[{i}]") for i, value in enumerate(values))


def _check_augmentation(augmentation: RunAugmentation | None) -> None:
    if augmentation is None:
        return
    for field in ("forced_snippet_uids", "forced_skill_uids"):
        for index, value in enumerate(getattr(augmentation, field)):
            _reference(value, f"$.augmentation.{field}[{index}]")


def _augmentation(augmentation: RunAugmentation | None) -> RunAugmentation | None:
    if augmentation is None or augmentation.system_prompt_override is None:
        return augmentation
    text = clean_text(augmentation.system_prompt_override, _DOCUMENT, "$.augmentation.system_prompt_override")
    return msgspec.structs.replace(augmentation, system_prompt_override=text)


def _check_numbers(request: AgentRunRequest) -> None:
    options = request.options
    for path, value in (
        ("$.planned_cost", request.planned_cost),
        ("$.options.temperature", options.temperature),
        ("$.options.top_p", options.top_p),
    ):
        if value is not None and not math.isfinite(value):
            raise CodecError(_DOCUMENT, path, "not a finite number")
    if request.max_iterations is not None and not 0 < request.max_iterations <= 200:
        raise CodecError(_DOCUMENT, "$.max_iterations", "out of range")


def _actor(actor: Actor) -> Actor:
    groups, grants, scopes = (
        tuple(clean_text(word, _DOCUMENT, f"$.actor.{field}[{i}]") for i, word in enumerate(getattr(actor, field)))
        for field in ("groups", "grants", "scopes")
    )
    name = clean_text(actor.name, _DOCUMENT, "$.actor.name")
    return msgspec.structs.replace(actor, name=name, groups=groups, grants=grants, scopes=scopes)


def _caller(caller: Caller | None) -> Caller | None:
    if caller is None:
        return None
    operation = clean_text(caller.operation, _DOCUMENT, "$.caller.operation")
    return Caller(extension=_name(caller.extension, "$.caller.extension"), operation=operation)


@contextmanager
def _below(path: str) -> Iterator[None]:
    """Put a part's path in front of the faults that are found in it."""
    try:
        yield
    except CodecError as error:
        raise CodecError(_DOCUMENT, path + error.path[1:], error.problem) from None


def _options(options: ModelOptions) -> ModelOptions:
    schema = options.response_schema
    if schema is not None:
        with _below("$.options.response_schema"):
            schema = clean_json(schema, _DOCUMENT)
        options = msgspec.structs.replace(options, response_schema=schema)
    with _below("$.options"):
        # A constructor checks nothing; the same bounds hold for code as for bytes.
        options = convert(msgspec.to_builtins(options), ModelOptions, _DOCUMENT)
    stop = options.stop
    if stop is not None:
        stop = tuple(clean_text(item, _DOCUMENT, f"$.options.stop[{i}]") for i, item in enumerate(stop))
    return msgspec.structs.replace(options, stop=stop)


def _message(message: Message, path: str) -> Message:
    if message.tool_calls and message.role is not Role.ASSISTANT:
        raise CodecError(_DOCUMENT, f"{path}.tool_calls", "only an assistant message has tool calls")
    if (message.tool_call_id is not None) != (message.role is Role.TOOL):
        raise CodecError(_DOCUMENT, f"{path}.tool_call_id", "belongs to tool messages, and to each of them")
    if message.signed:
        raise CodecError(_DOCUMENT, f"{path}.signed", "not for callers")
    calls = tuple(_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls))
    content = clean_text(message.content, _DOCUMENT, f"{path}.content")
    answers = _name_or_none(message.tool_call_id, f"{path}.tool_call_id")
    return msgspec.structs.replace(message, content=content, tool_calls=calls, tool_call_id=answers)


def _call(call: ToolCall, path: str) -> ToolCall:
    return ToolCall(
        id=_name(call.id, f"{path}.id"),
        name=_name(call.name, f"{path}.name"),
        arguments=clean_text(call.arguments, _DOCUMENT, f"{path}.arguments"),
    )


def _no_open_calls(messages: tuple[Message, ...]) -> None:
    open_ids: set[str] = set()
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            if message.tool_call_id not in open_ids:
                raise CodecError(_DOCUMENT, f"$.messages[{index}].tool_call_id", "answers no open call")
            open_ids.discard(message.tool_call_id)
            continue
        if open_ids:
            raise CodecError(_DOCUMENT, f"$.messages[{index}]", "an earlier tool call has no result")
        open_ids = {call.id for call in message.tool_calls}
        if len(open_ids) != len(message.tool_calls):
            raise CodecError(_DOCUMENT, f"$.messages[{index}].tool_calls", "a repeated id")
    if open_ids:
        raise CodecError(_DOCUMENT, "$.messages", "the last tool call has no result")
