"""Port: time that passes in this process, and randomness. The core has neither; the driver puts both into events."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """A process's own clock and source of randomness. Wall-clock time is the database's."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def nonce(self) -> str:
        """Sixteen random bytes in hex."""
        ...

    def uuid(self) -> str:
        """A random UUID in canonical spelling."""
        ...
