"""The request: what a caller asks for when a run is started, the same from the playground and from the queue."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from codec.actor import LOCAL, Actor
from codec.documents import convert
from codec.errors import CodecError
from codec.transcript import Message

__all__ = ["AgentRunRequest", "Caller", "ModelOptions", "RunAugmentation"]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything a caller may tune about a send. Closed: nothing in here can change model, messages, tools or target.

    Units: `max_tokens` in tokens; None = the provider's default. `response_schema` is a JSON Schema object.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(gt=0, lt=2**31)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    stop: tuple[str, ...] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    think: bool | None = None
    response_schema: dict[str, Any] | None = None


class RunAugmentation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caller puts onto this one run.

    Shape: forced lists in the caller's order; an identifier stands for a uid until the run's row is written. Any
    augmentation, even an empty one, makes assembly write prompt and forced snippets in front of everything; with None
    the lead is written only when the caller's messages hold no system message. So None stays None.
    """

    forced_snippet_uids: tuple[int | str, ...] = ()
    forced_skill_uids: tuple[int | str, ...] = ()
    system_prompt_override: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Accept any sequence."""
        msgspec.structs.force_setattr(self, "forced_snippet_uids", tuple(self.forced_snippet_uids))
        msgspec.structs.force_setattr(self, "forced_skill_uids", tuple(self.forced_skill_uids))


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the caller's software asked; attribution only. Never inside `options`."""

    extension: str
    operation: str = ""


class AgentRunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run as asked for.

    Shape: `configuration` is an identifier, or a uid once the row is written. `allowed_tool_names`: None = every tool
    that is enabled, `()` = no tools. `actor` defaults to the holder of the database. `planned_cost` is carried and
    stored only. Messages may be given as dicts; they hold no open tool call.
    """

    configuration: int | str
    messages: tuple[Message, ...]
    allowed_tool_names: tuple[str, ...] | None = None
    options: ModelOptions = ModelOptions()
    max_iterations: Annotated[int, msgspec.Meta(gt=0, le=200)] | None = None
    augmentation: RunAugmentation | None = None
    actor: Actor = LOCAL
    planned_cost: float | None = None
    idempotency_key: str | None = None
    caller: Caller | None = None
    tags: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Accept any sequence, and messages as dicts."""
        given: Any = self.messages
        messages = tuple(m if isinstance(m, Message) else _message(m, i) for i, m in enumerate(given))
        msgspec.structs.force_setattr(self, "messages", messages)
        if self.allowed_tool_names is not None:
            msgspec.structs.force_setattr(self, "allowed_tool_names", tuple(self.allowed_tool_names))


def _message(given: object, index: int) -> Message:
    try:
        return convert(given, Message, "request")
    except CodecError as error:
        raise CodecError("request", f"$.messages[{index}]{error.path[1:]}", error.problem) from None
