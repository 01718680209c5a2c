"""Port: wake-ups. Availability only: a lost, late, repeated or forged one changes nothing but time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Signals"]


class Signals(Protocol):
    """Sends uuids to the workers."""

    async def wake(self, uuids: Sequence[str]) -> bool:
        """Tell some worker that these runs are due. False when nobody could be told; never raises for that."""
        ...
