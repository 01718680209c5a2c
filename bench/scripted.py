"""The scripted model and the two tools of work W as plain functions, for the floor and for peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from bench import work

__all__ = ["REPLIES", "TOOLS", "Reply", "lookup_order", "refund_order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model says: a text, and the name and arguments of a call or neither."""

    text: str
    tool: str = ""
    arguments: dict[str, Any] | None = None


REPLIES: Final = (
    Reply(text=work.THOUGHTS[0], tool="lookup_order", arguments=work.LOOKUP_ARGUMENTS),
    Reply(text=work.THOUGHTS[1], tool="refund_order", arguments=work.REFUND_ARGUMENTS),
    Reply(text=work.ANSWER),
)
"""The n-th answers a transcript with n - 1 messages of the model."""


async def lookup_order(order: int) -> str:
    """Look an order up."""
    return work.LOOKUP


async def refund_order(order: int, reason: str) -> str:
    """Refund an order."""
    return work.REFUND


TOOLS: Final[dict[str, Callable[..., Awaitable[str]]]] = {"lookup_order": lookup_order, "refund_order": refund_order}
