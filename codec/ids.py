"""Identifiers: their types and their one spelling. None is made here."""

from __future__ import annotations

import uuid
from typing import Annotated, NewType

import msgspec

from codec.errors import CodecError

__all__ = ["Nonce", "RunUuid", "Uid", "parse_run_uuid"]

Uid = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
"""Uid of a catalogue record or a row: a positive integer, never reused."""
Nonce = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""Sixteen random bytes in hex, made by the driver; question and send ids derive from it."""
RunUuid = NewType("RunUuid", str)
"""A run's public name: a UUID in its canonical lower-case spelling."""


def parse_run_uuid(text: str) -> RunUuid:
    """Check a run's uuid. Errors: `CodecError` unless it is spelled exactly as we spell it."""
    try:
        canonical = str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        canonical = ""
    if canonical != text or not canonical:
        raise CodecError("uuid", "$", "not a uuid")
    return RunUuid(canonical)
