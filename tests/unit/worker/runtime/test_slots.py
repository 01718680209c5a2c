"""Provider slots: limits hold, configurations take turns, nothing is lost when a waiter gives up."""

from __future__ import annotations

import asyncio

from codec.commands import Target
from codec.vocabulary import TrustZone
from worker.runtime.slots import ProviderSlots, Slot


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def nonce(self) -> str:
        return "0" * 32

    def uuid(self) -> str:
        return "00000000-0000-4000-8000-000000000000"


def target(configuration: str = "a", *, concurrency: int = 0, per_minute: int = 0) -> Target:
    return Target(
        provider=1,
        identifier="house",
        kind="scripted",
        configuration=configuration,
        model="m",
        zone=TrustZone.LOCAL,
        version=1,
        max_concurrency=concurrency,
        requests_per_minute=per_minute,
    )


async def turns(count: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_without_limits_everybody_goes() -> None:
    slots = ProviderSlots(Clock())

    taken = [await slots.acquire(target()) for _ in range(100)]

    assert 100 == len(taken)


async def test_no_more_than_the_limit_are_in_flight_and_a_release_lets_the_next_one_go() -> None:
    slots = ProviderSlots(Clock())
    first = await slots.acquire(target(concurrency=1))
    second = asyncio.ensure_future(slots.acquire(target(concurrency=1)))
    await turns()

    assert not second.done()

    first.release()
    first.release()
    third = asyncio.ensure_future(slots.acquire(target(concurrency=1)))
    await turns()

    assert second.done()
    assert not third.done()
    third.cancel()


async def test_configurations_take_turns_whatever_the_length_of_their_queues() -> None:
    slots = ProviderSlots(Clock())
    order: list[str] = []
    held = await slots.acquire(target(concurrency=1))

    async def go(name: str) -> None:
        slot = await slots.acquire(target(name, concurrency=1))
        order.append(name)
        slot.release()

    waiting = [asyncio.ensure_future(go(name)) for name in ["crowd"] * 4 + ["small"]]
    await turns()
    held.release()
    await asyncio.wait(waiting)

    assert ["crowd", "small", "crowd", "crowd", "crowd"] == order


async def test_a_waiter_that_gives_up_leaves_its_place_to_the_next() -> None:
    slots = ProviderSlots(Clock())
    held = await slots.acquire(target(concurrency=1))
    first = asyncio.ensure_future(slots.acquire(target(concurrency=1)))
    second = asyncio.ensure_future(slots.acquire(target(concurrency=1)))
    await turns()
    held.release()
    first.cancel()  # its slot has just been handed over, and nobody will use it
    await turns()

    assert first.cancelled()
    assert isinstance(second.result(), Slot)


async def test_sends_of_a_minute_are_counted_from_their_begin() -> None:
    clock = Clock()
    slots = ProviderSlots(clock)
    (await slots.acquire(target(per_minute=1))).release()
    next_one = asyncio.ensure_future(slots.acquire(target(per_minute=1)))
    await turns()

    assert not next_one.done()

    clock.now = 60.0
    raised = asyncio.ensure_future(slots.acquire(target(per_minute=2)))
    await turns()

    assert next_one.done()
    assert raised.done()
