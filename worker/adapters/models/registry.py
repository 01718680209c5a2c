"""Finds the sender of a permit's kind. What a status means is the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final

from codec.commands import Permit
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass
from worker.ports.models import ModelRequest, Models, ModelSendError

__all__ = ["MAX_RETRY_AFTER_MS", "ModelRegistry", "failure_of_status", "retry_after_ms"]

MAX_RETRY_AFTER_MS: Final = 3_600_000
"""An hour. A provider that is gone for longer is better asked again in vain than trusted with the run's whole day."""
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]*)?")


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


def retry_after_ms(value: str | None, now: float) -> int:
    """Read a Retry-After, seconds or an HTTP date; 0 for none, for the past and for what is neither.

    Units: milliseconds, at most `MAX_RETRY_AFTER_MS`; `now` in epoch seconds. Source: RFC 9110, 10.2.3.
    """
    text = (value or "").strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else _until(text, now)
    return int(min(max(0.0, seconds * 1000), MAX_RETRY_AFTER_MS))


def _until(date: str, now: float) -> float:
    try:
        found = parsedate_to_datetime(date)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0


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
