"""Port: tools. The decorator and the types that a tool's author uses, and how the runtime calls tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from codec.facts import ToolFacts
from codec.vocabulary import FailureClass

__all__ = [
    "PREVIEW_LIMIT_S",
    "NotExecuted",
    "RegisteredTool",
    "ToolCallInfo",
    "ToolFault",
    "ToolResult",
    "Toolbox",
]

PREVIEW_LIMIT_S: Final = 10.0
"""Seconds that a preview may take: a person waits for it, and the run can wait without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallInfo:
    """What a tool may know of its call. `key` is unique per (run, call), the same at every repetition."""

    run: str
    call_id: str
    key: str
    actor: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result: `content` goes to the model, cut at 50 000 bytes."""

    content: str


class NotExecuted(Exception):
    """Raised by a tool to say that nothing happened in the world. Its text is never shown to anybody."""


class ToolFault(Exception):
    """A call failed; the class is all that is told."""

    def __init__(self, failure: FailureClass) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool's facts and its function. `preview` gets the same arguments and gives lines.

    Shape: `wants_call` and `preview_wants_call` say which of the two takes the keyword `call`.
    """

    facts: ToolFacts
    function: Callable[..., Awaitable[Any] | Any]
    preview: Callable[..., Awaitable[Any] | Any] | None
    wants_call: bool
    preview_wants_call: bool = False


class Toolbox(Protocol):
    """The registered tools of this process."""

    def facts(self) -> Sequence[ToolFacts]:
        """All registered tools, in registration order."""
        ...

    async def call(self, name: str, arguments: str, info: ToolCallInfo, timeout_ms: int) -> str:
        """Run a tool on a JSON object and give its bounded, clean text.

        Errors: `ToolFault` with `not_executed`, `timeout`, `raised` or `aborted`; never the tool's own exception.
        """
        ...

    async def preview(self, name: str, arguments: str, info: ToolCallInfo) -> tuple[tuple[str, ...], bool]:
        """Lines for a person and whether the preview failed.

        Total; at most 20 lines of 500 characters and a rest, within `PREVIEW_LIMIT_S`.
        """
        ...
