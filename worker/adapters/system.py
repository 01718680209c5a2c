"""The real clock and the system's randomness."""

from __future__ import annotations

import secrets
import time
import uuid

__all__ = ["SystemClock"]


class SystemClock:
    """`Clock` of this process."""

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def nonce(self) -> str:
        """Sixteen random bytes in hex."""
        return secrets.token_hex(16)

    def uuid(self) -> str:
        """A version 4 UUID."""
        return str(uuid.uuid4())
