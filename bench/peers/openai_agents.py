"""Work W on the OpenAI Agents SDK: a tool that needs approval, its SQLAlchemy session for the items of each turn, and
`RunState` as JSON in a table while the run waits. Tracing is off."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool, set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from sqlalchemy.ext.asyncio import AsyncEngine

from bench import work
from bench.measuring import Case, drive, warm_up
from bench.peers.history import History, open_engine
from bench.scripted import REPLIES, lookup_order, refund_order
from bench.storage import growth, stored

__all__ = ["measure"]


class _Scripted(Model):
    async def get_response(self, system_instructions: Any, input: Any, *more: Any, **options: Any) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        said = REPLIES[sum(item.get("type") == "message" and item.get("role") == "assistant" for item in items)]
        text = ResponseOutputText(text=said.text, type="output_text", annotations=[])
        output: list[Any] = [
            ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        ]
        if said.tool:
            arguments = json.dumps(said.arguments)
            call = ResponseFunctionToolCall(
                arguments=arguments, call_id=f"call_{said.tool}", name=said.tool, type="function_call"
            )
            output.append(call)
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *more: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _agent() -> Agent[None]:
    tools = [function_tool(lookup_order), function_tool(refund_order, needs_approval=True)]
    return Agent(name="w", instructions=work.SYSTEM, model=_Scripted(), tools=list(tools))


async def _work_w(agent: Agent[None], engine: AsyncEngine, history: History) -> None:
    run = str(uuid.uuid4())
    quiet = RunConfig(tracing_disabled=True)
    await history.begin(run, work.PROMPT)
    session = SQLAlchemySession(run, engine=engine)
    rested = await Runner.run(agent, work.PROMPT, session=session, run_config=quiet)
    assert rested.interruptions
    await history.rest(run, "waiting", rested.to_state().to_string())
    state = await RunState.from_string(agent, await history.resume(run))
    for asked in state.get_interruptions():
        state.approve(asked)
    ended = await Runner.run(agent, state, session=SQLAlchemySession(run, engine=engine), run_config=quiet)
    assert ended.final_output == work.ANSWER
    await history.rest(run, "completed", "")


async def measure(case: Case) -> dict[str, Any]:
    """Measure one concurrency on one engine."""
    set_tracing_disabled(True)
    agent = _agent()
    async with open_engine(case) as engine:
        history = History(engine)
        await history.create()
        await SQLAlchemySession("tables", engine=engine, create_tables=True).get_items()

        async def one() -> None:
            await _work_w(agent, engine, history)

        await warm_up(case, one)
        before = await stored(case)
        found = await drive(case, case.runs, one)
        found |= growth(before, await stored(case), found["runs"])
    return found | {"version": f"OpenAI Agents {version('openai-agents')}"}
