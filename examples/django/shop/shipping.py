"""What the model may do in this shop: hand an order to the courier, once somebody has agreed."""

from __future__ import annotations

from worker.tools import ToolCallInfo, tool


@tool(effect="idempotent_write", data_class="internal_configuration", description="Hand the order to the courier.")
def ship_order(*, call: ToolCallInfo) -> str:
    # A courier that is told the same key again sends no second parcel.
    return f"handed over, receipt {call.key[:8]}"
