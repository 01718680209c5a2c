"""Suspects: runs whose last segments died with nothing to show, kept apart so that one cannot take the others along.

A process that dies takes all its runs with it, and nothing tells which of them did it. The first two recoveries are
like any other: processes die for many reasons. From then on a run waits until few of its kind are driven here, at last
none. So whatever kills its process is soon alone among those who have come no further, and uses up its own recoveries
only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Self

__all__ = ["PARKED_S", "SUSPECT", "Suspects", "Turn"]

PARKED_S: Final = 5.0
"""Seconds until a run that had no turn is due again. It holds no slot meanwhile, and no crash is counted to it."""
SUSPECT: Final = 2
"""Segments in vain from which on a run is a suspect."""
_ALONE: Final = 3
"""Segments in vain from which on a run is driven beside no other such run of its process."""
_SHARE: Final = 8
"""Which part of a process's slots runs may use that are suspects and not yet alone: one in so many."""


class Suspects:
    """The turns of one process. Belongs to one event loop.

    Units: `max_runs`, slots of the process; in vain = segments since the run came further that stored nothing but, at
    most, their beginning.
    """

    def __init__(self, max_runs: int) -> None:
        self._room = {SUSPECT: max(1, max_runs // _SHARE), _ALONE: 1}
        self._inside = Counter[int]()

    def enter(self, in_vain: int) -> int | None:
        """Take a place among runs of the same kind and give it; None when there is no room."""
        place = 0 if in_vain < SUSPECT else min(in_vain, _ALONE)
        if place in self._room and self._inside[place] >= self._room[place]:
            return None
        self._inside[place] += 1
        return place

    def leave(self, place: int) -> None:
        """Make room."""
        self._inside[place] -= 1


class Turn:
    """The place of one run. A context manager: leaving it makes room."""

    __slots__ = ("_limit_s", "_place", "_suspects", "_timer")

    def __init__(self, suspects: Suspects, limit_s: float) -> None:
        """Begin without a place. Units: `limit_s`, seconds after which a run that killed nobody makes room."""
        self._suspects = suspects
        self._limit_s = limit_s
        self._place: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, in_vain: int) -> bool:
        """Take the place of a run with so many segments in vain. False: no room."""
        self._place = self._suspects.enter(in_vain)
        if self._place:
            self._timer = asyncio.get_running_loop().call_later(self._limit_s, self.end)
        return self._place is not None

    def end(self) -> None:
        """Make room, because the run came further or ended. A second time is nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._place is not None:
            self._suspects.leave(self._place)
            self._place = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
