"""Provider kind `openai`: any server with OpenAI's chat completions interface, through the official SDK.

Always streamed: a stream tells a slow model from a dead server, and a cut answer from a whole one. Deltas go to the
progress sink; only a whole reply is returned. The SDK is an extra, imported by the first send.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from codec.commands import Permit, Target
from codec.errors import CodecError
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass
from worker.adapters.models.openai_request import body_of
from worker.adapters.models.registry import retry_after_ms
from worker.ports.models import ModelRequest, ModelSendError

if TYPE_CHECKING:
    from worker.adapters.models.openai_client import Sender, SenderFactory

__all__ = ["MAX_SENDERS", "PLACEHOLDER_KEY", "OpenAIModels", "Timeouts", "sdk_problem"]

MAX_SENDERS: Final = 32
"""Places that are kept. Beyond, the one that was idle for longest is dropped; a house has a handful of them."""
PLACEHOLDER_KEY: Final = "none"
"""The key for a server that wants none: the interface has no way to send no key, and such servers read none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Units: seconds; `connect` to reach the server, `read` between two pieces of its answer. The total is the
    caller's."""

    connect: float = 5.0
    read: float = 120.0  # a long prompt on a small machine takes a minute to its first token


@dataclass(frozen=True, slots=True)
class _Place:
    """What tells one sender from another; the key only by its digest."""

    base_url: str
    key_variable: str | None
    key_digest: bytes


@dataclass(slots=True)
class _Held:
    """An open sender and the number of sends that use it."""

    sender: Sender
    users: int = 0


class OpenAIModels:
    """Sender of kind `openai`. `keys` by variable; `clock` gives epoch seconds, for dates in Retry-After.

    Belongs to one event loop; `close` it there. Its `repr` shows nothing.
    """

    def __init__(
        self, keys: Mapping[str, str], *, timeouts: Timeouts | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._timeouts = Timeouts() if timeouts is None else timeouts
        self._clock = clock
        self._factory: SenderFactory | None = None
        self._loading = asyncio.Lock()
        self._held: dict[_Place, _Held] = {}

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """Send once to the permit's target.

        Errors: `ModelSendError`; `configuration` without a usable base_url or key, or without the SDK.
        """
        target = permit.target
        place, key = self._place(target)
        body = _body(target.model, request)
        if body is None:
            raise ModelSendError(FailureClass.CONFIGURATION)
        held = self._hold(place, key, await self._load())
        try:
            await self._trim()
            outcome = await held.sender.send(body, progress)
        finally:
            held.users -= 1
        if isinstance(outcome, ModelReply):
            return outcome
        raise ModelSendError(outcome.failure, retry_after_ms(outcome.retry_after, self._clock()))

    async def close(self) -> None:
        """Close every connection, those in use too."""
        while self._held:
            _, held = self._held.popitem()
            await held.sender.close()

    def _place(self, target: Target) -> tuple[_Place, str]:
        base_url, variable = target.base_url or "", target.key_variable
        key = PLACEHOLDER_KEY if variable is None else self._keys.get(variable, "")
        # A header takes nothing else, and the library that would find out says the value in its message.
        usable = bool(key) and key.isascii() and key.isprintable() and " " not in key
        if not usable or not base_url.startswith(("http://", "https://")):
            raise ModelSendError(FailureClass.CONFIGURATION)
        return _Place(base_url, variable, hashlib.sha256(key.encode()).digest()), key

    async def _load(self) -> SenderFactory:
        async with self._loading:
            if self._factory is None:
                # It takes the better part of a second, which would hold up every other run of this process.
                loaded = await asyncio.to_thread(_load, self._timeouts)
                if isinstance(loaded, str):
                    raise ModelSendError(FailureClass.CONFIGURATION)
                self._factory = loaded
            return self._factory

    def _hold(self, place: _Place, key: str, factory: SenderFactory) -> _Held:
        held = self._held.pop(place, None)
        if held is None:
            sender = factory.open(place.base_url, key)
            if sender is None:
                raise ModelSendError(FailureClass.CONFIGURATION)
            held = _Held(sender)
        self._held[place] = held  # at the end: the order is by last use
        held.users += 1
        return held

    async def _trim(self) -> None:
        for place, held in list(self._held.items()):
            if len(self._held) <= MAX_SENDERS:
                return
            if held.users == 0 and self._held.pop(place, None) is not None:
                await held.sender.close()


def sdk_problem() -> str | None:
    """Say in one sentence why kind `openai` cannot be used in this installation; None when it can."""
    loaded = _load(Timeouts())
    return loaded if isinstance(loaded, str) else None


def _load(timeouts: Timeouts) -> SenderFactory | str:
    """Import the SDK and read the trusted certificates; the sentence of `sdk_problem` when that fails. Blocks."""
    # With this variable the SDK, when imported, makes every library of the process talk to stderr.
    before = set(logging.root.handlers) if "OPENAI_LOG" in os.environ else None
    try:
        from worker.adapters.models.openai_client import SenderFactory  # noqa: PLC0415 - an extra, and slow to import
    except (ImportError, AttributeError):  # absent, or so old that a part is missing
        return "kind openai needs the openai package, version 3.57 or newer: pip install 'regate[openai]'"
    finally:
        for handler in set() if before is None else set(logging.root.handlers) - before:
            logging.root.removeHandler(handler)
    try:
        return SenderFactory(connect=timeouts.connect, read=timeouts.read)
    except OSError:
        return "kind openai cannot read the trusted certificates that SSL_CERT_FILE or SSL_CERT_DIR names"


def _body(model: str, request: ModelRequest) -> dict[str, object] | None:
    try:
        return body_of(model, request)
    except CodecError:
        return None
