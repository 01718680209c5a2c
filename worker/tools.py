"""What authors of tools import. Everything is defined in `worker.ports`; nothing else is public for them."""

from worker.ports.tool_decorator import tool
from worker.ports.toolbox import NotExecuted, ToolCallInfo, ToolResult

__all__ = ["NotExecuted", "ToolCallInfo", "ToolResult", "tool"]
