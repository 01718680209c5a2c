"""The watchdog: a thread that says where the event loop stands when it does not turn.

A loop that is blocked renews no lease and hears no cancel, and cannot say so itself. Usually a tool blocks it: one that
is declared `async` and calls something that waits. What is told are places in code, never values.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from worker.telemetry import Log

__all__ = ["watched"]

_LOOKS: Final = 4
"""Looks per limit: a blockage is told at most a quarter late."""
_PLACES: Final = 3
"""Innermost frames that are told: usually the library that waits, its wrapper, and who called it."""


@contextmanager
def watched(log: Log, limit_s: float) -> Iterator[None]:
    """Watch the running loop until the block ends.

    Logs `loop.blocked` with the places and the seconds so far when it has not turned for `limit_s`, again each time
    that this has doubled, and `loop.free` with the seconds when it turns again.
    """
    watchdog = _Watchdog(asyncio.get_running_loop(), log, limit_s)
    thread = threading.Thread(target=watchdog.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.ended.set()
        thread.join()


class _Watchdog:
    def __init__(self, loop: asyncio.AbstractEventLoop, log: Log, limit_s: float) -> None:
        self.ended = threading.Event()
        self._loop = loop
        self._log = log
        self._limit_s = limit_s
        self._watched = threading.get_ident()
        self._turned_at = time.monotonic()
        self._asked = False
        self._told = False

    def watch(self) -> None:
        """Look until told to end. Runs in a thread of its own."""
        tell_at = self._limit_s
        while not self.ended.wait(self._limit_s / _LOOKS):
            blocked_s = time.monotonic() - self._turned_at
            if blocked_s >= tell_at:
                tell_at = 2 * blocked_s
                self._told = True
                self._log("loop.blocked", {"seconds": round(blocked_s, 1), "at": self._places()})
            elif blocked_s < self._limit_s:
                tell_at = self._limit_s
            if not self._asked:
                self._asked = True
                self._loop.call_soon_threadsafe(self._turned)

    def _turned(self) -> None:
        """Note that the loop turns. Runs on it."""
        now = time.monotonic()
        if self._told:
            self._log("loop.free", {"seconds": round(now - self._turned_at, 1)})
        self._turned_at, self._asked, self._told = now, False, False

    def _places(self) -> list[str]:
        frame = sys._current_frames().get(self._watched)
        found: list[str] = []
        while frame is not None and len(found) < _PLACES:
            found.append(_place(frame))
            frame = frame.f_back
        return found


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
