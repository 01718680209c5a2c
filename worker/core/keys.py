"""Names that the machine derives: of questions, sends and calls. Derived from nonces, so the core makes none."""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["call_key", "derived_id", "send_key"]


def derived_id(nonce: str, purpose: str) -> str:
    """Give a 128-bit id in hex that belongs to one event and one purpose."""
    return hashlib.sha256(f"{purpose}:{nonce}".encode()).hexdigest()[:32]


def call_key(seed: str, run: str, turn: int, index: int) -> str:
    """Give a call's idempotency key: the same for this run, turn and position for ever, whatever else happens."""
    message = f"call:{run}:{turn}:{index}".encode()
    return hmac.new(bytes.fromhex(seed), message, hashlib.sha256).hexdigest()[:32]


def send_key(seed: str, send: str) -> str:
    """Give a send's idempotency key. A send after a crash is another send and has another key."""
    return hmac.new(bytes.fromhex(seed), f"send:{send}".encode(), hashlib.sha256).hexdigest()[:32]
