"""Port: model providers. One verb: send once, to exactly the permit's target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from codec.commands import Permit
from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.transcript import Message, ModelReply
from codec.vocabulary import FailureClass

__all__ = ["ModelRequest", "ModelSendError", "Models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What is sent: messages as redacted, tools offered, options. `run`, `round`, `hop`, `key` are metadata."""

    run: str
    round: int
    hop: int
    key: str
    messages: tuple[Message, ...]
    tools: tuple[ToolFacts, ...]
    options: ModelOptions


class ModelSendError(Exception):
    """A send failed. Its text is the class only: an answer's body never gets here.

    Units: `not_before_ms` from a Retry-After.
    """

    def __init__(self, failure: FailureClass, not_before_ms: int = 0) -> None:
        super().__init__(failure.value)
        self.failure = failure
        self.not_before_ms = not_before_ms


class Models(Protocol):
    """Every provider kind behind one verb."""

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """Send once: no retry, no redirect, no environment proxy; the target is the permit's and nothing else.

        `progress` gets text deltas, which are no events. Errors: `ModelSendError`. Safe to cancel.
        """
        ...
