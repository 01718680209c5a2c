"""The runtime for programs without an event loop: Flask, Django under WSGI, scripts, any number of threads.

One thread runs the loop; calls are handed to it and waited for. Only the insert on a caller's connection happens on the
calling thread, since that is where such a connection belongs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from codec.actor import Actor
from codec.answers import OutcomeWord
from codec.request import AgentRunRequest
from codec.vocabulary import Origin
from codec.wire import Shown
from worker.bootstrap import open_runtime
from worker.runtime import joining
from worker.runtime.answers import Verdicts
from worker.runtime.errors import UnavailableError
from worker.runtime.handle import Handle
from worker.runtime.service import Runtime
from worker.settings import Settings

__all__ = ["BlockingRuntime", "open_blocking_runtime"]

T = TypeVar("T")

_FINISH_S: Final = 30.0
"""Seconds that runs, and then calls, have to finish at a close: as long as a statement may wait for a lock."""
_CLOSE_S: Final = 60.0
"""Seconds for what a close does besides: connections are closed when their statements have ended."""


def open_blocking_runtime(settings: Settings | None = None) -> BlockingRuntime:
    """Open the runtime for a program of yours that has threads; settings come from the environment unless given.

    Use it as a context manager, or keep it as long as the process lives. A fork takes no threads along: a server that
    forks opens it in each of its processes.
    Errors: `SettingsError`, `StartError`; nothing is left open then.
    """
    return BlockingRuntime(settings)


class BlockingRuntime:
    """The verbs of `Runtime`, each waiting for its result. Safe on any thread but its own.

    Errors of every verb: those of the runtime's, and `UnavailableError` (`closed`, `forked`) when it cannot be used.
    A process that ends without closing it leaves what a crash leaves: nothing that the fleet would not find.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Start the thread and wait until the runtime is open."""
        self._pid = os.getpid()
        self._guard = threading.Lock()  # of the two below
        self._asked: set[Future[Any]] = set()
        self._closed = False
        self._stop = asyncio.Event()
        self._finish_s = _FINISH_S
        self._ended: Future[None] = Future()
        opened: Future[tuple[Runtime, asyncio.AbstractEventLoop]] = Future()
        # A daemon: the interpreter would else wait for a close that never comes.
        self._thread = threading.Thread(target=self._main, args=(settings, opened), name="regate", daemon=True)
        self._thread.start()
        self._runtime, self._loop = opened.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self, finish_s: float = _FINISH_S) -> None:
        """Release the runs driven here, let calls under way finish, end the thread. May be repeated.

        Units: `finish_s` is how long the runs have to reach a boundary, and then the calls to return; what is left is
        given up, and its callers are told `closed`.
        Errors: `TimeoutError` when it takes far longer.
        """
        if self._pid != os.getpid():
            return  # it is the parent's
        self._refuse_own_thread()
        with self._guard:
            self._closed = True
        self._finish_s = finish_s
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.result(2 * finish_s + _CLOSE_S)
        self._thread.join(_CLOSE_S)

    # --- starting

    def enqueue(
        self, request: AgentRunRequest, *, origin: Origin = Origin.QUEUE, connection: object | None = None
    ) -> Handle:
        """Store a run and tell a worker; see `Runtime.enqueue`.

        With a sync `connection` the run is written in its open transaction, on this thread, and nobody is told: commit,
        then `wake` the handle. Async connections are refused.
        """
        if connection is None:
            stored = self._ask(lambda runtime: runtime.enqueue(request, origin=origin))
            return self._handle(stored.uuid, stored.is_new)
        new = self._ask(lambda runtime: runtime.prepare(request, origin))
        row, is_new = joining.join_blocking(self._runtime.parts.store, connection, new)
        return self._handle(row.uuid, is_new)

    def run(self, request: AgentRunRequest) -> Shown:
        """Start a run here and drive it to its rest, however long that takes."""
        return self._ask(lambda runtime: runtime.run(request))

    def drive(self, uuid: str) -> None:
        """See a run to its rest, claiming it here when nobody else has it, however long that takes."""
        self._ask(lambda runtime: runtime.drive(uuid))

    # --- looking

    def show(self, actor: Actor, uuid: str) -> Shown:
        """Give the show document, with texts as far as the actor may read them."""
        return self._ask(lambda runtime: runtime.show(actor, uuid))

    def wait(self, uuid: str) -> None:
        """Wait until a run rests, driven by whoever has it, however long that takes."""
        self._ask(lambda runtime: runtime.wait(uuid))

    # --- answering

    def decide(self, actor: Actor, uuid: str, question: str, said: Verdicts, *, via: str) -> None:
        """Answer an approval question: one document that covers every gated call."""
        self._ask(lambda runtime: runtime.decide(actor, uuid, question, said, via=via))

    def submit(self, actor: Actor, uuid: str, question: str, data: str, *, via: str) -> None:
        """Answer an input question with a JSON object."""
        self._ask(lambda runtime: runtime.submit(actor, uuid, question, data, via=via))

    def settle(self, actor: Actor, uuid: str, question: str, word: OutcomeWord, *, via: str) -> None:
        """Say what became of a call of unknown outcome."""
        self._ask(lambda runtime: runtime.settle(actor, uuid, question, word, via=via))

    def resume(self, actor: Actor, uuid: str, *, via: str) -> None:
        """Try a blocked run again."""
        self._ask(lambda runtime: runtime.resume(actor, uuid, via=via))

    def cancel(self, actor: Actor, uuid: str, *, via: str) -> None:
        """End a run."""
        self._ask(lambda runtime: runtime.cancel(actor, uuid, via=via))

    # --- between the threads

    def _ask(self, ask: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Have something done on the loop and wait for it. An interrupted wait ends what was asked, not its run."""
        if self._pid != os.getpid():
            raise UnavailableError("forked", "this runtime was opened before a fork; open one in this process")
        self._refuse_own_thread()
        with self._guard:
            if self._closed:
                raise UnavailableError("closed", "this runtime was closed")
            asked = asyncio.run_coroutine_threadsafe(ask(self._runtime), self._loop)
            self._asked.add(asked)
        try:
            return asked.result()
        except CancelledError:
            raise UnavailableError("closed", "this runtime was closed meanwhile") from None
        finally:
            asked.cancel()
            with self._guard:
                self._asked.discard(asked)

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the runtime's own thread; it would wait for itself")

    def _handle(self, uuid: str, is_new: bool) -> Handle:
        return Handle(uuid, is_new=is_new, tell=self._tell)

    def _tell(self, uuid: str) -> None:
        if self._pid == os.getpid():
            with suppress(RuntimeError):  # the loop has ended; the sweeper finds the run
                self._loop.call_soon_threadsafe(self._runtime.wake_soon, [uuid])

    # --- on the thread

    def _main(self, settings: Settings | None, opened: Future[tuple[Runtime, asyncio.AbstractEventLoop]]) -> None:
        try:
            asyncio.run(self._serve(settings, opened))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever opens or closes, not to this thread
            (self._ended if opened.done() else opened).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(
        self, settings: Settings | None, opened: Future[tuple[Runtime, asyncio.AbstractEventLoop]]
    ) -> None:
        async with open_runtime(settings) as runtime:
            opened.set_result((runtime, asyncio.get_running_loop()))
            await self._stop.wait()
            await runtime.host.drain(self._finish_s)  # whoever waits for a run that is driven here has it back then
            with self._guard:
                asked = list(self._asked)
            await asyncio.to_thread(wait, asked, self._finish_s)
            for future in asked:
                future.cancel()
