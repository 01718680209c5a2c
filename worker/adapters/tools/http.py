"""`http_get` and `post_json`: one request to a listed host, without redirects, proxies, retries or cookies.

The machine has judged the host's zone when it let the call through. What is checked here again is that the host is
listed now, and where its name really leads: the connection goes to the very address that was checked.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx

from codec.text import dump_json
from codec.vocabulary import TrustZone
from worker.adapters.tools.threads import OverdueError
from worker.core.hosts import Destination, address_allowed, read_url, zone_of_host
from worker.ports.timeliness import in_time
from worker.ports.tool_decorator import HOST_EGRESS, tool, tools_of
from worker.ports.toolbox import NotExecuted, RegisteredTool, ToolCallInfo

__all__ = ["MAX_RESPONSE_BYTES", "HttpSender", "Timeouts", "http_tools"]

Egress = Callable[[], Awaitable[Mapping[str, TrustZone]]]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""Bytes read of one answer; what follows is not fetched. A result holds a twentieth of it anyway."""

_MAX_ADDRESSES: Final = 4  # tried one after the other; two families with two machines each
_TOOL_SECONDS: Final = 60
_CHARSETS: Final = ("utf-8", "ascii", "iso8859-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be")
_MAX_KEYS: Final = 20
_URL: Final = {"type": "string", "pattern": "^https?://", "description": "Absolute http or https URL."}
#: Failures of httpx after which certainly no byte of the request has left.
_BEFORE_SENDING: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    destination: Destination
    url: httpx.URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Units: seconds; `connect` to find and per address, `read` between two pieces of an answer, `total` from there."""

    connect: float = 5.0
    read: float = 20.0
    total: float = 45.0  # below the tools' own 60, so that what ended the call is known here first


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system for a host's addresses, in its order. Errors: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HttpSender:
    """Sends one request at a time and connection. Keeps nothing between two calls but the trusted certificates."""

    def __init__(self, egress: Egress, *, timeouts: Timeouts | None = None, resolve: Resolve = resolve) -> None:
        self._egress = egress
        self._timeouts = Timeouts() if timeouts is None else timeouts
        self._resolve = resolve
        self._trust: ssl.SSLContext | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> str:
        """Send once and give the answer's text; a status that is no success gives that number and nothing else.

        Errors: `NotExecuted` when nothing was sent (refused, unknown host, no connection); `OverdueError` when nothing
        was sent because the permit grew too old on the way; httpx' and `TimeoutError` when the outcome is unknown.
        """
        try:
            async with asyncio.timeout(self._timeouts.connect):
                target, addresses = await self._addresses(url)
        except Exception:  # noqa: BLE001 - whatever it was, nothing has been sent
            raise NotExecuted from None
        async with asyncio.timeout(self._timeouts.total):
            for address in addresses:
                request = self._request(method, target, address, headers, body)
                with contextlib.suppress(*_BEFORE_SENDING):
                    return await self._exchange(request)
        raise NotExecuted

    async def _addresses(self, url: str) -> tuple[_Target, Sequence[str]]:
        """Read the URL, look its host up once, check every address that it has."""
        destination, given = read_url(url), httpx.URL(url)
        # Two parsers must agree on the host, else one of them has been deceived.
        if given.host.lower() != destination.host or (given.port or destination.port) != destination.port:
            raise NotExecuted
        zone = zone_of_host(destination, await self._egress())
        if zone is None:
            raise NotExecuted
        found = await self._resolve(destination.host, destination.port)
        # One forbidden address among them is a name that plays games: then none is used.
        if not all(address_allowed(destination, address, zone) for address in found):
            raise NotExecuted
        return _Target(destination=destination, url=given), found[:_MAX_ADDRESSES]

    def _request(
        self, method: str, target: _Target, address: str, headers: Mapping[str, str], body: bytes | None
    ) -> httpx.Request:
        timeouts = httpx.Timeout(self._timeouts.read, connect=self._timeouts.connect)
        return httpx.Request(
            method,
            target.url.copy_with(host=address, fragment=None),
            headers={
                "Host": target.destination.netloc,
                "User-Agent": "regate",
                "Accept-Encoding": "identity",  # what is not packed cannot unpack to gigabytes
                "Connection": "close",
                **headers,
            },
            content=body,
            # The certificate is the host's, not the address's.
            extensions={
                "timeout": timeouts.as_dict(),
                "sni_hostname": target.destination.host,
                "trace": _still_permitted,
            },
        )

    async def _exchange(self, request: httpx.Request) -> str:
        # SSL_CERT_FILE of the environment counts (a house's own authority), its proxies and passwords do not.
        if self._trust is None:
            # Reading all authorities takes long enough to hold up every other run of the loop.
            self._trust = await asyncio.to_thread(httpx.create_ssl_context, trust_env=True)
        async with httpx.AsyncClient(verify=self._trust, trust_env=False, follow_redirects=False) as client:
            response = await client.send(request, stream=True)
            try:
                return await _text(response)
            finally:
                await response.aclose()


async def _still_permitted(event: str, _: Mapping[str, Any]) -> None:
    # Resolving and shaking hands take time; the last moment to look at the permit is before the first byte leaves.
    if event.endswith("send_request_headers.started") and not in_time():
        raise OverdueError


async def _text(response: httpx.Response) -> str:
    if not response.is_success:
        return f"HTTP error {response.status_code}"
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "The answer is compressed, which was not asked for."
    async with contextlib.aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as pieces:
        body = await _read(pieces)
    return _decode(body, response.charset_encoding) if body else f"HTTP {response.status_code}"


async def _read(pieces: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) >= MAX_RESPONSE_BYTES:
            break
    return bytes(body[:MAX_RESPONSE_BYTES])


def _decode(body: bytes, charset: str | None) -> str:
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        name = "utf-8"
    # Python's own codecs hold more than charsets, some of them slow or no text at all.
    return body.decode(name if name in _CHARSETS else "utf-8", errors="replace")


def http_tools(sender: HttpSender) -> tuple[RegisteredTool, ...]:
    """Make `http_get` and `post_json` with this sender."""

    @tool(
        group="web",
        data_class="editor_content",
        egress=HOST_EGRESS,
        timeout_s=_TOOL_SECONDS,
        parameters={"type": "object", "properties": {"url": _URL}, "required": ["url"], "additionalProperties": False},
    )
    async def http_get(url: str) -> str:
        """Fetch a text over HTTP from a permitted host. Redirects are not followed."""
        return await sender.send("GET", url, {}, None)

    @tool(
        effect="non_idempotent_write",
        group="web",
        data_class="editor_content",
        egress=HOST_EGRESS,
        timeout_s=_TOOL_SECONDS,
        preview=_preview_post,
        parameters={
            "type": "object",
            "properties": {"url": _URL, "body": {"type": "object", "description": "The JSON object to send."}},
            "required": ["url", "body"],
            "additionalProperties": False,
        },
    )
    async def post_json(url: str, body: dict[str, Any], *, call: ToolCallInfo) -> str:
        """Send a JSON object by HTTP POST to a permitted host. Redirects are not followed."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": call.key}
        return await sender.send("POST", url, headers, dump_json(body).encode())

    return tools_of({"http_get": http_get, "post_json": post_json})


def _preview_post(url: str, body: dict[str, Any]) -> list[str]:
    keys = list(body)
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    return [
        f"POST {url}",
        f"Body: {len(dump_json(body).encode())} bytes of JSON",
        f"Keys: {', '.join(keys[:_MAX_KEYS])}{more}" if keys else "Keys: none",
    ]
