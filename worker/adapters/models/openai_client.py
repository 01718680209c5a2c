"""The official SDK behind a fence. The only module that imports it, and itself imported when it is needed.

The SDK makes the request. What leaves is decided here: to one URL, with a closed list of headers, once. Nothing that
the SDK, the environment or an answer adds (redirects, cookies, organisation, telemetry) passes the fence, and no
exception passes `Sender.send`: they hold requests, keys and bodies.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import httpx2
import openai

from codec.transcript import ModelReply
from codec.vocabulary import FailureClass
from worker.adapters.models.openai_reply import ReplyError, StreamReader, WholeReader
from worker.adapters.models.registry import failure_of_status
from worker.ports.timeliness import in_time

__all__ = ["Failed", "Sender", "SenderFactory"]

_PATH: Final = "/chat/completions"
_UNTIL_CLOSE: Final = "regate_until_close"
_LOGGERS: Final = ("openai", "httpx2", "httpcore2")

_sending: ContextVar[bool] = ContextVar("_sending", default=False)


class _StatusError(Exception):
    """The server answered with a status that is no success; its body was not read."""

    def __init__(self, status: int, retry_after: str | None) -> None:
        super().__init__(str(status))
        self.status = status
        self.retry_after = retry_after


class _OverdueError(Exception):
    """The permit grew too old while a connection was made; nothing has left."""


async def _still_permitted(event: str, _: object) -> None:
    # Resolving and shaking hands take time; the last moment to look at the permit is before the first byte leaves.
    if event.endswith("send_request_headers.started") and not in_time():
        raise _OverdueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What may be known of a failed send. `retry_after` is the header as it came."""

    failure: FailureClass
    retry_after: str | None = None


class _Fence(httpx2.AsyncBaseTransport):
    """Lets one kind of request through, and of an answer only what is read here."""

    def __init__(self, url: str, key: str, timeout: httpx2.Timeout, inner: httpx2.AsyncBaseTransport) -> None:
        self._url = httpx2.URL(url)
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # what is not packed cannot unpack to gigabytes
            "User-Agent": "regate",
            # A server may close an idle connection at the very moment that it is used again, and a send must not be
            # repeated: with llama.cpp's, 6 of 40 sends in a row were lost. A handshake is nothing beside an answer.
            "Connection": "close",
        }
        self._timeout = timeout
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the body that the SDK made. Errors: `_StatusError`, `ReplyError` for a packed answer, httpx2's."""
        own = httpx2.Request(
            "POST",
            self._url,
            headers=self._headers,
            content=request.content,
            extensions={"timeout": self._timeout.as_dict(), "trace": _still_permitted},
        )
        answer = await self._inner.handle_async_request(own)
        headers = answer.headers
        if failure_of_status(answer.status_code) is not None:
            await answer.aclose()
            raise _StatusError(answer.status_code, headers.get("retry-after"))
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            await answer.aclose()
            raise ReplyError
        return httpx2.Response(
            answer.status_code,
            headers={"Content-Type": headers.get("content-type", "")},
            stream=answer.stream,
            extensions={_UNTIL_CLOSE: not {"content-length", "transfer-encoding"} & set(headers)},
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class SenderFactory:
    """Opens senders that share the trusted certificates. Units: seconds; `read` between two pieces of an answer."""

    def __init__(self, *, connect: float, read: float) -> None:
        # SSL_CERT_FILE of the environment counts (a house's own authority), its proxies and passwords do not.
        self._trust = httpx2.create_ssl_context(trust_env=True)
        self._timeout = httpx2.Timeout(read, connect=connect)
        _silence()

    def open(self, base_url: str, key: str) -> Sender | None:
        """Open a sender to one place, None if that is no place; connections are made by sends."""
        try:
            usable = bool(httpx2.URL(base_url).host)
        except httpx2.InvalidURL:
            usable = False
        return Sender(base_url, key, self._timeout, self._trust) if usable else None


class Sender:
    """Sends to one place with one key. Belongs to one event loop."""

    def __init__(self, base_url: str, key: str, timeout: httpx2.Timeout, trust: ssl.SSLContext) -> None:
        base = base_url.rstrip("/")
        # No bound on connections: who holds the slots bounds the sends, and a second queue here would age permits.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        inner = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False, limits=limits)
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base,
            max_retries=0,
            timeout=timeout,
            # Empty, not absent: the SDK reads what is absent from the environment.
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            http_client=httpx2.AsyncClient(
                transport=_Fence(base + _PATH, key, timeout, inner),
                timeout=timeout,
                trust_env=False,
                follow_redirects=False,
            ),
        )

    async def send(self, body: dict[str, Any], progress: Callable[[str], None] | None) -> ModelReply | Failed:
        """Send once and give the whole reply, or why there is none. Raises nothing but cancellation."""
        try:
            with _silently():
                # `chat.completions.create` would walk through every message to rename what has its name already:
                # 25 ms for a hundred of them. `post` is the SDK's way for a body that is ready; it gives what it casts
                # to, whatever it says of streams.
                opened: object = await self._client.post(
                    _PATH, cast_to=httpx2.Response, body=body, stream=True, stream_cls=openai.AsyncStream[Any]
                )
                async with contextlib.aclosing(cast("httpx2.Response", opened)) as response:
                    return await _receive(response, progress)
        except Exception as error:  # noqa: BLE001 - whatever it holds of request and body ends here; its class goes on
            return _failed(error)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


async def _receive(response: httpx2.Response, progress: Callable[[str], None] | None) -> ModelReply:
    kind = response.headers["content-type"].partition(";")[0].strip().lower()
    reader = StreamReader(progress) if kind == "text/event-stream" else WholeReader(progress)
    async with contextlib.aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            reader.feed(piece)
            if reader.done:
                break
    return reader.finish(lost=bool(response.extensions[_UNTIL_CLOSE]))


def _failed(error: Exception) -> Failed:
    if any(isinstance(e, _OverdueError) for e in (error, error.__cause__, error.__context__)):
        return Failed(failure=FailureClass.PERMIT_EXPIRED)  # the SDK wraps what a transport raises
    match error:
        case _StatusError():
            failure = failure_of_status(error.status) or FailureClass.INVALID_REPLY
            return Failed(failure=failure, retry_after=error.retry_after)
        case ReplyError():
            return Failed(failure=error.failure)
        # Timeouts among them: what did not answer in time may do so later or elsewhere.
        case openai.APIConnectionError() | httpx2.RequestError() | anyio.EndOfStream() | OSError():
            return Failed(failure=FailureClass.CONNECTION)
        case _:
            return Failed(failure=FailureClass.UNKNOWN)


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    token = _sending.set(True)
    try:
        yield
    finally:
        _sending.reset(token)


def _not_ours(_: logging.LogRecord) -> bool:
    return not _sending.get()


def _silence() -> None:
    """Drop the log lines of our own sends, at every level: they name URLs and hold headers. Others keep theirs."""
    known = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _LOGGERS]
    for name in (*_LOGGERS, *known):
        logging.getLogger(name).addFilter(_not_ours)
