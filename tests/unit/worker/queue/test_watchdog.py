"""The watchdog tells where a loop stands that does not turn, and nothing of a loop that does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from worker.queue.watchdog import watched

LIMIT_S = 0.1


class Told:
    """A log that others can wait for, from any thread."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.blocked = threading.Event()
        self.free = asyncio.Event()

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Log."""
        self.events.append((event, fields))
        if event == "loop.blocked":
            self.blocked.set()
        if event == "loop.free":
            self.free.set()


def wait_as_a_careless_tool_does(event: threading.Event) -> bool:
    """Block the loop until somebody noticed."""
    return event.wait(20)


async def test_a_blocked_loop_is_told_with_its_place_and_a_free_one_with_the_time() -> None:
    log = Told()

    with watched(log, LIMIT_S):
        assert wait_as_a_careless_tool_does(log.blocked)
        await asyncio.wait_for(log.free.wait(), 20)

    (blocked, where), (free, how_long) = log.events[0], log.events[-1]
    assert ("loop.blocked", "loop.free") == (blocked, free)
    assert any("wait_as_a_careless_tool_does" in place for place in where["at"]), where
    assert how_long["seconds"] >= LIMIT_S


async def test_a_long_blockage_is_told_again_but_not_at_every_look() -> None:
    log = Told()

    with watched(log, LIMIT_S):
        wait_as_a_careless_tool_does(log.blocked)
        log.blocked.clear()
        wait_as_a_careless_tool_does(log.blocked)

    times = [fields["seconds"] for event, fields in log.events if event == "loop.blocked"]
    assert 2 == len(times)
    assert times[1] >= 2 * LIMIT_S


async def test_a_loop_that_turns_is_left_alone() -> None:
    log = Told()

    with watched(log, 2.0):  # longer than this machine is ever busy elsewhere
        for _ in range(8):
            await asyncio.sleep(0.1)

    assert [] == log.events
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
