"""Runs blocking functions in threads: bounded, abandonable, and never in the way of the process's end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.ports.timeliness import in_time

__all__ = ["EscapedError", "OverdueError", "Started", "Threads"]


class EscapedError(Exception):
    """A function raised what is no `Exception` (SystemExit, KeyboardInterrupt …): `name` is its class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class OverdueError(Exception):
    """The permit grew too old before anything was begun: while waiting for a thread, or for a connection."""


@dataclass(slots=True)
class Started:
    """Whether a function has begun: until then nothing has happened in the world."""

    begun: bool = False


class Threads:
    """At most `limit` blocking functions at a time. Belongs to the event loop on which it is first used.

    A thread cannot be stopped: one whose caller has given up keeps its place until its function returns. The threads
    are daemons, because a pool's threads are joined at exit and one hanging function would keep the process alive.
    """

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], Any], started: Started) -> Any:
        """Run `function` in a thread of its own and give what it gives.

        Errors: its own exception; `EscapedError` when that is no `Exception`.
        Safe to cancel: before the function has begun it never begins, afterwards its outcome is dropped.
        """
        await self._places.acquire()
        if not in_time():
            self._places.release()
            raise OverdueError
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            outcome = _outcome(lambda: context.run(function))
            # The loop may be closed by now: then nobody waits for the outcome either.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, future, outcome)

        started.begun = True
        try:
            threading.Thread(target=work, name="regate-tool", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            started.begun = False
            self._places.release()
            raise
        return await future

    def _settle(self, future: asyncio.Future[Any], outcome: _Outcome) -> None:
        self._places.release()
        if future.cancelled():
            return
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None


def _outcome(function: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(value=function())
    except StopIteration:  # a future refuses it, and the caller would wait for ever
        return _Outcome(error=EscapedError("StopIteration"))
    except Exception as error:  # noqa: BLE001 - carried to the caller
        return _Outcome(error=error)
    except BaseException as error:  # noqa: BLE001
        # SystemExit, KeyboardInterrupt or a cancellation of a loop of its own: in a thread they are addressed to
        # nobody, and raised on our loop they would end the worker.
        return _Outcome(error=EscapedError(type(error).__name__))
