"""Work W on pydantic-ai: an agent with a deferred tool. Storing is its user's part, so each node's new messages are
stored as a step, and the whole history when the run waits, as the documentation shows for approvals."""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench import work
from bench.measuring import Case, drive, warm_up
from bench.peers.history import History, open_engine
from bench.scripted import REPLIES, lookup_order, refund_order
from bench.storage import growth, stored

__all__ = ["measure"]


async def _model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    said = REPLIES[sum(isinstance(message, ModelResponse) for message in messages)]
    text = TextPart(said.text)
    if not said.tool:
        return ModelResponse(parts=[text])
    return ModelResponse(parts=[text, ToolCallPart(said.tool, said.arguments, tool_call_id=f"call_{said.tool}")])


def _agent() -> Agent[None, str | DeferredToolRequests]:
    agent = Agent(FunctionModel(_model), output_type=[str, DeferredToolRequests], system_prompt=work.SYSTEM)
    agent.tool_plain(lookup_order)
    agent.tool_plain(requires_approval=True)(refund_order)
    return agent


async def _drive(agent: Agent[None, Any], history: History, run: str, stored_before: int, **start: Any) -> Any:
    """Run to the next rest, storing what each node added."""
    kept = stored_before
    async with agent.iter(**start) as running:
        async for _ in running:
            messages = running.all_messages()
            if len(messages) > kept:
                await history.step(run, kept, ModelMessagesTypeAdapter.dump_json(messages[kept:]).decode())
                kept = len(messages)
    return running.result


async def _work_w(agent: Agent[None, Any], history: History) -> None:
    run = str(uuid.uuid4())
    await history.begin(run, work.PROMPT)
    rested = await _drive(agent, history, run, 0, user_prompt=work.PROMPT)
    assert isinstance(rested.output, DeferredToolRequests)
    await history.rest(run, "waiting", rested.all_messages_json().decode())
    messages = ModelMessagesTypeAdapter.validate_json(await history.resume(run))
    approved = DeferredToolResults(approvals={"call_refund_order": True})
    ended = await _drive(agent, history, run, len(messages), message_history=messages, deferred_tool_results=approved)
    assert ended.output == work.ANSWER
    await history.rest(run, "completed", ended.all_messages_json().decode())


async def measure(case: Case) -> dict[str, Any]:
    """Measure one concurrency on one engine."""
    agent = _agent()
    async with open_engine(case) as engine:
        history = History(engine)
        await history.create()

        async def one() -> None:
            await _work_w(agent, history)

        await warm_up(case, one)
        before = await stored(case)
        found = await drive(case, case.runs, one)
        found |= growth(before, await stored(case), found["runs"])
    return found | {"version": f"pydantic-ai {version('pydantic-ai-slim')}"}
