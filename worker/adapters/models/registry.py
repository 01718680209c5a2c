"""Finds the sender of a permit's kind. What a status means is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from codec.commands import Permit
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass
from worker.ports.models import ModelRequest, Models, ModelSendError

__all__ = ["ModelRegistry", "failure_of_status"]


def failure_of_status(status: int) -> FailureClass | None:
    """Give the class of an HTTP status; None for a success.

    A redirect is a wrong base_url: what is sent goes to the permit's target and nowhere else.
    """
    if 200 <= status < 300:
        return None
    if status == 429:
        return FailureClass.RATE_LIMIT
    if status in (401, 403):
        return FailureClass.AUTH
    if 500 <= status < 600:
        return FailureClass.SERVER_ERROR
    if 400 <= status < 500:
        return FailureClass.CLIENT_ERROR
    return FailureClass.CONFIGURATION if 300 <= status < 400 else FailureClass.INVALID_REPLY


class ModelRegistry:
    """All senders of this process by the provider's kind."""

    def __init__(self, senders: Mapping[str, Models]) -> None:
        self._senders = MappingProxyType(dict(senders))

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """Send by the kind's sender. Errors: `ModelSendError`, with `configuration` for a kind that nobody knows."""
        sender = self._senders.get(permit.target.kind)
        if sender is None:
            raise ModelSendError(FailureClass.CONFIGURATION)
        return await sender.send(permit, request, progress)
