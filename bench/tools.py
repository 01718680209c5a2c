"""The two tools of work W, as an author writes them."""

from __future__ import annotations

from bench.work import LOOKUP, PAGE_BYTES, REFUND, prose
from worker.tools import tool

_ORDER = {"order": {"type": "integer"}}


@tool(
    data_class="public_content",
    description="Look an order up.",
    parameters={"type": "object", "properties": _ORDER, "required": ["order"], "additionalProperties": False},
)
async def lookup_order(order: int) -> str:
    return LOOKUP


@tool(
    effect="non_idempotent_write",
    data_class="public_content",
    description="Refund an order.",
    parameters={
        "type": "object",
        "properties": {**_ORDER, "reason": {"type": "string"}},
        "required": ["order", "reason"],
        "additionalProperties": False,
    },
)
async def refund_order(order: int, reason: str) -> str:
    return REFUND


@tool(
    data_class="public_content",
    description="Read a page.",
    parameters={
        "type": "object",
        "properties": {"page": {"type": "integer"}},
        "required": ["page"],
        "additionalProperties": False,
    },
)
async def read_page(page: int) -> str:
    return prose(1000 + page, PAGE_BYTES)
