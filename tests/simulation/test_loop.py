"""Virtual time: it costs nothing, it passes for processes that stand still, and it ends for those that died."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.loop import Kernel, ProcessLoop


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(random.Random(1))


async def count(seconds: float, into: list[float], kernel: Kernel) -> None:
    """Write the time down, again and again."""
    while True:
        await asyncio.sleep(seconds)
        into.append(kernel.now)


def run(kernel: Kernel, until: float) -> None:
    """Turn the kernel until a virtual time."""
    while kernel.now < until and kernel.turn():
        pass


def test_a_day_passes_at_once(kernel: Kernel) -> None:
    loop = kernel.new_loop("one")
    slept = loop.create_task(asyncio.sleep(86_400.0, "awake"))

    run(kernel, 90_000.0)

    assert (86_400.0, "awake") == (kernel.now, slept.result())
    loop.bury()


def test_a_stalled_process_runs_its_timers_when_it_goes_on(kernel: Kernel) -> None:
    times: dict[str, list[float]] = {"still": [], "other": []}
    loops = {name: kernel.new_loop(name) for name in times}
    for name, loop in loops.items():
        loop.create_task(count(1.0, times[name], kernel))
    kernel.after(1.5, loops["still"].stall)
    kernel.after(4.5, loops["still"].resume)

    run(kernel, 6.0)

    assert [1.0, 2.0, 3.0, 4.0, 5.0] == times["other"][:5]
    assert [1.0, 4.5, 5.5] == times["still"][:3]
    for loop in loops.values():
        loop.bury()


def test_a_dead_process_never_runs_again(kernel: Kernel) -> None:
    seen: list[float] = []
    loop = kernel.new_loop("one")
    loop.create_task(count(1.0, seen, kernel))
    kernel.after(2.5, loop.kill)
    kernel.after(9.0, lambda: None)

    run(kernel, 9.0)

    assert [1.0, 2.0] == seen
    loop.bury()


def test_what_nobody_catches_is_kept(kernel: Kernel) -> None:
    loop: ProcessLoop = kernel.new_loop("one")
    loop.call_soon(int, "no number")

    run(kernel, 1.0)

    assert "ValueError" in loop.faults[0]
    loop.bury()
