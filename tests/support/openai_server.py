"""A small OpenAI-compatible server on loopback that does exactly what a test tells it, good or bad.

Each request is met by the next behaviour of `plan`; the last one repeats. What came in is in `sent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = 10.0
"""The longest that anything here waits for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request as it came; names of headers in lower case, each as often as it was sent."""

    connection: int
    line: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(slots=True)
class Exchange:
    """One request and the means to answer it, byte by byte."""

    sent: Sent
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep: bool = True

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the client has heard enough
            self.writer.write(data)
            await self.writer.drain()

    async def head(self, status: int, *headers: tuple[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Word", *(f"{name}: {value}" for name, value in headers)]
        await self.write("\r\n".join((*lines, "", "")).encode("latin-1"))

    async def start(self, *headers: tuple[str, str], kind: str = "text/event-stream") -> None:
        await self.head(200, ("Content-Type", kind), ("Transfer-Encoding", "chunked"), *headers)

    async def piece(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def gone(self) -> None:
        """Wait until the client has closed its side."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass


Behaviour = Callable[[Exchange], Awaitable[None]]


@dataclass(slots=True)
class OpenAIServer:
    """See the module."""

    plan: list[Behaviour] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    port: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first request."""
    _empty: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def will(self, *behaviours: Behaviour) -> None:
        self.plan = list(behaviours)

    async def emptied(self) -> None:
        """Wait until no client is connected any more."""
        async with asyncio.timeout(SECONDS):
            await self._empty.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        self._empty.clear()
        try:
            await self._answer(self.connections, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the test is over: asyncio's streams would report that as a fault
        finally:
            self.open -= 1
            if not self.open:
                self._empty.set()
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            exchange = Exchange(await _request(number, reader), reader, writer)
            self.sent.append(exchange.sent)
            self.asked.set()
            behaviour = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
            await behaviour(exchange)
            if not exchange.keep:
                return

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _request(number: int, reader: asyncio.StreamReader) -> Sent:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head[:-4].split("\r\n")
    pairs = [item.partition(":") for item in rest]
    headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
    raw = await reader.readexactly(int(dict(headers).get("content-length", "0")))
    return Sent(connection=number, line=line, headers=headers, raw=raw)


@contextlib.asynccontextmanager
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """Serve on a free port of loopback."""
    server = OpenAIServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.stop()


# --- Documents ----------------------------------------------------------------------------------------------


def chunk(delta: object = None, finish: object = None, **more: Any) -> dict[str, Any]:
    """One event of a stream."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "served-model", "choices": [choice], **more}


def text(content: str) -> dict[str, Any]:
    return chunk({"content": content})


def called(
    index: int | None = 0, /, id: object = None, name: object = None, arguments: object = None
) -> dict[str, Any]:
    """One delta of one tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": id, "type": "function", "function": function}
    return chunk({"tool_calls": [{key: value for key, value in call.items() if value is not None}]})


def usage(given: int, made: int) -> dict[str, Any]:
    counts = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return {"id": "x", "object": "chat.completion.chunk", "model": "served-model", "choices": [], "usage": counts}


def completion(message: object = None, finish: object = "stop", **more: Any) -> dict[str, Any]:
    """A whole answer that was not streamed."""
    said = {"role": "assistant", "content": "whole"} if message is None else message
    choice = {"index": 0, "message": said, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "model": "served-model", "choices": [choice], **more}


def events(documents: Sequence[object], *, done: bool = True, line_end: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(document)}" for document in documents] + ["data: [DONE]"] * done
    return "".join(line + 2 * line_end for line in lines).encode()


# --- Behaviours ---------------------------------------------------------------------------------------------


def streams(*documents: object, done: bool = True, line_end: str = "\n", size: int = 0) -> Behaviour:
    """Answer well: as one stream, in pieces of `size` bytes (0 = in one)."""

    async def behave(exchange: Exchange) -> None:
        data = events(documents, done=done, line_end=line_end)
        await exchange.start()
        step = size or len(data) or 1
        for start in range(0, len(data), step):
            await exchange.piece(data[start : start + step])
        await exchange.end()

    return behave


def answers(status: int, body: bytes | object, *headers: tuple[str, str], kind: str = "application/json") -> Behaviour:
    """Answer with one body, as JSON unless it is bytes."""

    async def behave(exchange: Exchange) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await exchange.head(status, ("Content-Type", kind), ("Content-Length", str(len(data))), *headers)
        await exchange.write(data)

    return behave
