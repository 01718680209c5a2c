"""Virtual time: one kernel, and one event loop for each simulated process. Nothing here waits for a real clock.

A process that is stalled keeps its ready callbacks and the timers that come due meanwhile; one that is dead never runs
again. Among the processes that could run, the kernel's random numbers choose, and they alone.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVarTuple

__all__ = ["Kernel", "ProcessLoop"]

_Ts = TypeVarTuple("_Ts")

_BURIAL_ROUNDS: Final = 50
"""Cancellations that a task may outlive before a schedule counts as badly ended; the product's need three at most."""


class Kernel:
    """The clock of a simulated world, in seconds, and the order in which everything in it happens."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.moved: Callable[[], None] = _nothing
        self._chance = chance
        self._loops: list[ProcessLoop] = []
        self._timers: list[tuple[float, int, ProcessLoop | None, Any]] = []
        self._pushed = 0

    def new_loop(self, name: str) -> ProcessLoop:
        """Make the event loop of one more process."""
        loop = ProcessLoop(self, name)
        self._loops.append(loop)
        return loop

    def after(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Let something happen outside of all processes. It may set futures of theirs."""
        self.push(self.now + seconds, None, (callback, args))

    def push(self, when: float, loop: ProcessLoop | None, due: Any) -> None:
        """Note what is due; equal times keep their order."""
        self._pushed += 1
        heapq.heappush(self._timers, (when, self._pushed, loop, due))

    def turn(self) -> bool:
        """Let one process run what it has ready, or move time to whatever is due next. False when nothing is."""
        ready = [loop for loop in self._loops if loop.ready and loop.awake]
        if ready:
            (ready[0] if len(ready) == 1 else self._chance.choice(ready)).run_ready()
            return True
        while self._timers:
            when, _, loop, due = heapq.heappop(self._timers)
            if loop is None:
                self._move(when)
                due[0](*due[1])
                return True
            if due.cancelled() or loop.dead:
                continue
            if not loop.awake:
                loop.overdue.append(due)
                continue
            self._move(when)
            loop.ready.append(due)
            return True
        return False

    def forget(self, loop: ProcessLoop) -> None:
        """Let a process go that will never run again."""
        self._loops.remove(loop)

    def _move(self, when: float) -> None:
        if when > self.now:
            self.now = when
            self.moved()


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process; the kernel turns it."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__()
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.overdue: list[asyncio.TimerHandle] = []
        self.awake = True
        self.dead = False
        self.faults: list[str] = []
        self._kernel = kernel
        self._kept: set[asyncio.Task[Any]] = set()

    def stall(self) -> None:
        """Stop running until `resume`."""
        self.awake = False

    def resume(self) -> None:
        """Go on, first with what was ready, then with the timers that came due meanwhile."""
        self.awake = not self.dead
        self.ready.extend(self.overdue)
        self.overdue.clear()

    def kill(self) -> None:
        """Stop for ever. What it waited for is kept, or the collector would end it in its own way."""
        self.dead, self.awake = True, False
        self._kept = asyncio.all_tasks(self)

    def run_ready(self) -> None:
        """Run what is ready now, until the process stalls or dies."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self.ready)):
                handle = self.ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self.awake:
                    return
        finally:
            asyncio._set_running_loop(None)

    def bury(self) -> None:
        """Cancel what is left until nothing is. To be called when every gate to the world outside is shut."""
        self.dead, self.awake = False, True
        for _ in range(_BURIAL_ROUNDS):
            left = self._left()
            if not left:
                break
            for task in left:
                task.cancel()
            while self.ready:
                self.run_ready()
        assert not self._left(), f"tasks of {self.name} outlive their cancellation"
        self.close()

    def _left(self) -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks(self) if not task.done()]

    # --- what asyncio asks of a loop

    def time(self) -> float:
        """Give the virtual time."""
        return self._kernel.now

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run in this process's next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run after virtual seconds."""
        return self.call_at(self._kernel.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run at a virtual time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._kernel.push(when, self, timer)
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody caught; a living process must not have any."""
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


def _nothing() -> None:
    """Watch nothing."""
