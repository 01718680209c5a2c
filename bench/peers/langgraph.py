"""Work W on LangGraph: a graph of two nodes, `interrupt` for the approval, its own checkpointers.

`durability` is "async", LangGraph's default, or "exit", which writes only when the graph stops.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench import work
from bench.measuring import Case, drive, warm_up
from bench.scripted import REPLIES, TOOLS
from bench.storage import growth, stored

__all__ = ["measure_default", "measure_exit"]


class _State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def _model(state: _State) -> dict[str, Any]:
    said = REPLIES[sum(isinstance(message, AIMessage) for message in state["messages"])]
    calls = [{"name": said.tool, "args": said.arguments, "id": f"call_{said.tool}"}] if said.tool else []
    return {"messages": [AIMessage(content=said.text, tool_calls=calls)]}


async def _tools(state: _State) -> dict[str, Any]:
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    [call] = last.tool_calls
    if call["name"] == "refund_order":
        assert interrupt({"approve": call["name"]}) is True
    found = await TOOLS[call["name"]](**call["args"])
    return {"messages": [ToolMessage(content=found, tool_call_id=call["id"])]}


def _next(state: _State) -> str:
    last = state["messages"][-1]
    return "tools" if isinstance(last, AIMessage) and last.tool_calls else END


def _graph(saver: BaseCheckpointSaver[Any]) -> Any:
    graph = StateGraph(_State)
    graph.add_node("model", _model)
    graph.add_node("tools", _tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", _next)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def _saver(case: Case) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if case.engine == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(case.file)) as saver:  # WAL, and SQLite's default of FULL
            await saver.setup()
            yield saver
        return
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        case.url, min_size=16, max_size=16, open=False, kwargs=settings
    )
    async with pool:
        postgres = AsyncPostgresSaver(pool)
        await postgres.setup()
        yield postgres


async def _measure(case: Case, durability: Literal["async", "exit"]) -> dict[str, Any]:
    async with _saver(case) as saver:
        graph = _graph(saver)

        async def one() -> None:
            place = {"configurable": {"thread_id": str(uuid.uuid4())}}
            asked = {"messages": [SystemMessage(work.SYSTEM), HumanMessage(work.PROMPT)]}
            rested = await graph.ainvoke(asked, place, durability=durability)
            assert rested["__interrupt__"]
            ended = await graph.ainvoke(Command(resume=True), place, durability=durability)
            assert ended["messages"][-1].content == work.ANSWER and len(ended["messages"]) == 7

        await warm_up(case, one)
        before = await stored(case)
        found = await drive(case, case.runs, one)
        found |= growth(before, await stored(case), found["runs"])
    return found | {"version": f"LangGraph {version('langgraph')}"}


async def measure_default(case: Case) -> dict[str, Any]:
    """Measure with the default durability."""
    return await _measure(case, "async")


async def measure_exit(case: Case) -> dict[str, Any]:
    """Measure with what loses the work since the last stop when the process dies."""
    return await _measure(case, "exit")
