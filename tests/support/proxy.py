"""A connection that misbehaves: carries bytes between clients and a server until it is told to hang, cut or swallow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

__all__ = ["Proxy", "proxy"]

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Proxy:
    """Made by `proxy`. `port` is on loopback; `swallowed` counts the answers that never arrived.

    While `hung` is set nothing moves in either direction, and no connection ends: what a dead network looks like from
    inside. `swallow` is asked about everything that a client sends: True = it is sent on, and the answer to it is lost
    with the connection.
    """

    def __init__(self, connect: Connect) -> None:
        self.port = 0
        self.swallowed = 0
        self.swallow: Callable[[bytes], bool] = lambda _: False
        self._connect = connect
        self._moving = asyncio.Event()
        self._moving.set()
        self._open: set[asyncio.Task[None]] = set()

    def hang(self) -> None:
        """Stop moving bytes, and take no new ones."""
        self._moving.clear()

    def go_on(self) -> None:
        """Move again whatever was held."""
        self._moving.set()

    async def cut(self) -> None:
        """End all connections, on both sides."""
        open_now = list(self._open)
        for task in open_now:
            task.cancel()
        if open_now:
            await asyncio.wait(open_now)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one client's connection to its end."""
        carrying = asyncio.current_task()
        assert carrying is not None
        self._open.add(carrying)
        writers = [writer]
        try:
            await self._moving.wait()
            there, back = await self._connect()
            writers.append(back)
            await self._carry((reader, back), (there, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one side has ended, or we were told to
        finally:
            self._open.discard(carrying)
            for one in writers:
                one.transport.abort()

    async def _carry(
        self,
        to_server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        to_client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry until one side ends. An answer that is to be lost ends both, when it has come."""
        lost = asyncio.Event()

        async def ask() -> None:
            while data := await to_server[0].read(65536):
                await self._moving.wait()
                if self.swallow(data):
                    lost.set()
                to_server[1].write(data)
                await to_server[1].drain()

        async def answer() -> None:
            while data := await to_client[0].read(65536):
                await self._moving.wait()
                if lost.is_set():
                    self.swallowed += 1
                    return
                to_client[1].write(data)
                await to_client[1].drain()

        both = [asyncio.ensure_future(ask()), asyncio.ensure_future(answer())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*both, return_exceptions=True)


@asynccontextmanager
async def proxy(connect: Connect) -> AsyncIterator[Proxy]:
    """Serve on a free port; `connect` opens a connection to the server."""
    made = Proxy(connect)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        made.go_on()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await made.cut()
