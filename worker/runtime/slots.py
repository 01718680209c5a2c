"""Provider slots: how many sends a process has in flight with one provider, and how many it begins in a minute.

A slot is taken before the step that commits the send, so that a permit does not age while it waits for one. Waiting
runs of one configuration do not crowd out those of another: configurations take turns, runs within one are in order.
Limits are the catalogue's, per process; 0 = none. They are read anew with every send.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from codec.commands import Target
from worker.ports.clock import Clock

__all__ = ["ProviderSlots", "Slot"]

_MINUTE_S: Final = 60.0


@dataclass(slots=True)
class _Lane:
    """One provider: what is in flight, when sends of the last minute began, and who waits, by configuration."""

    concurrency: int = 0
    per_minute: int = 0
    flying: int = 0
    begun: deque[float] = field(default_factory=deque)
    waiting: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    timer: asyncio.TimerHandle | None = None


class Slot:
    """The right to one send. Give it back once, when the send has ended or will not happen."""

    __slots__ = ("_lane", "_slots")

    def __init__(self, slots: ProviderSlots, lane: _Lane) -> None:
        self._slots = slots
        self._lane: _Lane | None = lane

    def release(self) -> None:
        """Give the slot back; a second time is nothing."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.flying -= 1
            self._slots.pump(lane)


class ProviderSlots:
    """Slots of all providers of one process. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}

    def take(self, target: Target) -> Slot | None:
        """Take a slot if one is free and nobody waits for it."""
        lane = self._lane(target)
        if lane.waiting or not self._open(lane):
            return None
        self._begin(lane)
        return Slot(self, lane)

    async def acquire(self, target: Target) -> Slot:
        """Wait for a slot. Safe to cancel: a slot that was handed over meanwhile goes to the next."""
        slot = self.take(target)
        if slot is not None:
            return slot
        lane = self._lane(target)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.setdefault(target.configuration, deque()).append(turn)
        self.pump(lane)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                Slot(self, lane).release()
            else:
                self._forget(lane, target.configuration, turn)
            raise
        return Slot(self, lane)

    def _lane(self, target: Target) -> _Lane:
        lane = self._lanes.setdefault(target.provider, _Lane())
        lane.concurrency, lane.per_minute = target.max_concurrency, target.requests_per_minute
        return lane

    def pump(self, lane: _Lane) -> None:
        """Hand free slots to whoever waits, configurations in turn."""
        while lane.waiting and self._open(lane):
            configuration, turns = lane.waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                lane.waiting[configuration] = turns
            if not turn.done():
                self._begin(lane)
                turn.set_result(None)
        self._wake_later(lane)

    def _open(self, lane: _Lane) -> bool:
        if lane.concurrency and lane.flying >= lane.concurrency:
            return False
        now = self._clock.monotonic()
        while lane.begun and lane.begun[0] <= now - _MINUTE_S:
            lane.begun.popleft()
        return not lane.per_minute or len(lane.begun) < lane.per_minute

    def _begin(self, lane: _Lane) -> None:
        lane.flying += 1
        if lane.per_minute:
            lane.begun.append(self._clock.monotonic())

    def _wake_later(self, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if lane.waiting and lane.begun:
            wait = max(0.001, lane.begun[0] + _MINUTE_S - self._clock.monotonic())
            lane.timer = asyncio.get_running_loop().call_later(wait, self.pump, lane)

    @staticmethod
    def _forget(lane: _Lane, configuration: str, turn: asyncio.Future[None]) -> None:
        turns = lane.waiting.get(configuration)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del lane.waiting[configuration]
