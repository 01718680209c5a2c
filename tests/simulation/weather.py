"""What goes wrong now: the rates of the plan, and what is away for a time. Calm after the storm."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.simulation.plan import Plan, Rates

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.loop import Kernel

__all__ = ["Weather"]

_CALM: Final = Rates(lost=0.1, model_fails=0.02, tool_fails=0.02, slow=0.02, garbage=0.0)


class Weather:
    """Asked at every step; answers by the seed's random numbers."""

    def __init__(self, plan: Plan, kernel: Kernel, chance: random.Random) -> None:
        self.rates = plan.rates
        self._kernel = kernel
        self._chance = chance
        self._until: dict[str, float] = {}

    def calm(self) -> None:
        """End the storm."""
        self.rates = _CALM
        self._until.clear()

    def begin(self, what: str, for_s: float) -> None:
        """Take something away for a time."""
        self._until[what] = max(self._until.get(what, 0.0), self._kernel.now + for_s)

    def away(self, what: str) -> bool:
        """Whether something is away now."""
        return self._until.get(what, 0.0) > self._kernel.now

    def anything_away(self) -> bool:
        """Whether anything is away now."""
        return any(until > self._kernel.now for until in self._until.values())

    def happens(self, rate: float) -> bool:
        """Throw a die; a rate of 0 throws none."""
        return rate > 0.0 and self._chance.random() < rate

    # --- the database

    def way(self) -> float:
        """Seconds from a process to the database, or back."""
        if self.away("speed"):
            return self._chance.uniform(0.02, 0.8)
        return self._chance.uniform(0.0002, 0.004)

    def database_away(self, process: Process) -> bool:
        """Whether this unit of work meets no database."""
        away = self.away("database") or self.away(f"database of {process.name}")
        return away or self.happens(self.rates.refused)

    def commit_unknown(self) -> bool:
        """Whether the answer to this COMMIT is lost."""
        return self.happens(self.rates.unknown)

    def undone(self) -> bool:
        """Whether such a COMMIT was lost itself."""
        return self._chance.random() < 0.5

    def withdrawn(self) -> bool:
        """Whether a unit of work is dropped whose process died, or whose waiter was cancelled, on its way."""
        return self._chance.random() < 0.5

    # --- messages, models and tools

    def copies(self) -> int:
        """How often a wake-up arrives."""
        if self.happens(self.rates.lost):
            return 0
        return 2 if self.happens(self.rates.repeated) else 1

    def transit(self) -> float:
        """Seconds that a wake-up takes."""
        return self._chance.uniform(0.5, 4.0) if self.happens(self.rates.late) else self._chance.uniform(0.0005, 0.01)

    def handshake(self) -> float:
        """Seconds until something leaves: a free thread, a connection. Sometimes longer than a permit lasts."""
        return self._chance.uniform(0.3, 2.5) if self.happens(self.rates.slow / 2) else self._chance.uniform(0.0, 0.02)

    def taking(self) -> float:
        """Seconds that a model or a tool takes: sometimes longer than a lease, and longer than the time it has."""
        if self.happens(self.rates.slow):
            return self._chance.choice((self._chance.uniform(0.5, 3.0), self._chance.uniform(3.0, 9.0)))
        return self._chance.uniform(0.02, 0.3)
