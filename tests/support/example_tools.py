"""Tools of a small shop, one of each effect, for tests that need a module to name in REGATE_TOOLS.

With EXAMPLE_TOOLS_LEDGER in the environment each execution appends one JSON line to that file:
`{"tool", "key", "run", "arguments"}`. It works across processes, so a test can count what really happened.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from worker.tools import NotExecuted, ToolCallInfo, ToolResult, tool

LEDGER: Final = "EXAMPLE_TOOLS_LEDGER"


def _note(name: str, call: ToolCallInfo, **arguments: Any) -> None:
    path = os.environ.get(LEDGER)
    if path is None:
        return
    line = json.dumps({"tool": name, "key": call.key, "run": call.run, "arguments": arguments}).encode() + b"\n"
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, line)
    finally:
        os.close(opened)


def _schema(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


@tool(data_class="editor_content", group="orders", parameters=_schema(order="integer"))
def lookup_order(order: int, *, call: ToolCallInfo) -> dict[str, object]:
    """Look up one order."""
    _note("lookup_order", call, order=order)
    return {"order": order, "state": "paid", "total": "12.50"}


def preview_refund(order: int) -> list[str]:
    """Say what a refund would do."""
    return [f"Refund order {order} in full.", "The customer gets an e-mail."]


@tool(
    effect="non_idempotent_write",
    data_class="editor_content",
    group="orders",
    description="Refund one order.",
    parameters=_schema(order="integer"),
    preview=preview_refund,
)
async def refund_order(order: int, *, call: ToolCallInfo) -> ToolResult:
    """Refund one order; an order below 1 does not exist, so nothing happens."""
    if order < 1:
        raise NotExecuted
    _note("refund_order", call, order=order)
    return ToolResult(f"Refunded order {order}.")


@tool(
    effect="idempotent_write",
    data_class="editor_content",
    group="orders",
    parameters=_schema(order="integer", label="string"),
)
def set_label(order: int, label: str, *, call: ToolCallInfo) -> str:
    """Set the label of one order."""
    _note("set_label", call, order=order, label=label)
    return f"Order {order} is labelled."


@tool(
    data_class="editor_content",
    group="people",
    parameters=_schema(topic="string", decision="string"),
    input_schema={
        "type": "object",
        "properties": {"decision": {"type": "string", "minLength": 1}},
        "required": ["decision"],
    },
)
def needs_person(topic: str, decision: str, *, call: ToolCallInfo) -> str:
    """Ask a person to decide about a topic."""
    _note("needs_person", call, topic=topic, decision=decision)
    return f"A person decided: {decision}"
