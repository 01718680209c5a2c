import worker.ports.tool_decorator
import worker.ports.toolbox
from worker import tools


def test_authors_of_tools_get_exactly_these_names() -> None:
    assert {"NotExecuted", "ToolCallInfo", "ToolResult", "tool"} == set(tools.__all__)
    assert tools.tool is worker.ports.tool_decorator.tool
    assert tools.NotExecuted is worker.ports.toolbox.NotExecuted
