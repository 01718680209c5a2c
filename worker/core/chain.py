"""The hash chain over a run's journal: a changed, dropped or swapped entry shows at its sequence.

The run's row holds the head. The chain covers the clear columns except the database's time, and the sealed payload;
deleting a whole run is not detected.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Final

__all__ = ["GENESIS", "link"]

GENESIS: Final = bytes(32)
"""The chain's value before the first entry."""


def link(
    prev: bytes, *, run: str, seq: int, kind: str, segment: int, token: str, policy: int, meta: str, payload: bytes
) -> bytes:
    """Give the chain's value after an entry: SHA-256 over the length-prefixed columns and the payload."""
    columns = (run, str(seq), kind, str(segment), token, str(policy), meta)
    parts = [part.encode() for part in columns]
    parts.append(payload)
    lengths = [len(part).to_bytes(8, "big") for part in parts]
    return hashlib.sha256(prev + b"".join(map(operator.add, lengths, parts))).digest()
