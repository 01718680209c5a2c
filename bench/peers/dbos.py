"""Work W on DBOS: a durable workflow whose model calls and tools are steps; it waits for its approval in `recv`.

A waiting workflow stays in memory, which is DBOS's way; what it received and did is in its system database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from importlib.metadata import version
from typing import Any, Final

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench import work
from bench.measuring import Case, drive, warm_up
from bench.scripted import REPLIES, TOOLS
from bench.storage import growth, stored

__all__ = ["measure"]

_POLL_S: Final = 0.01
"""Seconds between looks for messages on SQLite, a hundredth of the default; PostgreSQL notifies."""
_waits: Final[dict[str, asyncio.Event]] = {}


@DBOS.step()
async def _model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    said = REPLIES[sum(message["role"] == "assistant" for message in messages)]
    return {"role": "assistant", "content": said.text, "tool": said.tool, "arguments": said.arguments}


@DBOS.step()
async def _tool(name: str, arguments: dict[str, Any]) -> str:
    return await TOOLS[name](**arguments)


@DBOS.workflow()
async def _agent(prompt: str) -> str:
    messages = [{"role": "system", "content": work.SYSTEM}, {"role": "user", "content": prompt}]
    while True:
        said = await _model(messages)
        messages.append(said)
        if not said["tool"]:
            return str(said["content"])
        if said["tool"] == "refund_order":
            _waits[str(DBOS.workflow_id)].set()
            assert await DBOS.recv_async("approval", timeout_seconds=120)
        messages.append({"role": "tool", "content": await _tool(said["tool"], said["arguments"])})


async def _work_w() -> None:
    run = str(uuid.uuid4())
    waits = _waits[run] = asyncio.Event()
    with SetWorkflowID(run):
        handle = await DBOS.start_workflow_async(_agent, work.PROMPT)
    await waits.wait()
    await DBOS.send_async(run, True, topic="approval")
    assert await handle.get_result() == work.ANSWER
    del _waits[run]


async def measure(case: Case) -> dict[str, Any]:
    """Measure one concurrency on one engine."""
    config: DBOSConfig = {"name": "bench", "system_database_url": case.url, "log_level": "ERROR"}
    if case.engine == "sqlite":
        with sqlite3.connect(case.file) as connection:  # the file remembers it; DBOS leaves SQLite's default otherwise
            connection.execute("PRAGMA journal_mode = WAL")
        config["notification_listener_polling_interval_sec"] = _POLL_S
    DBOS(config=config)
    DBOS.launch()
    try:
        await warm_up(case, _work_w)
        before = await stored(case)
        found = await drive(case, case.runs, _work_w)
        found |= growth(before, await stored(case), found["runs"])
    finally:
        DBOS.destroy()
    return found | {"version": f"DBOS {version('dbos')}"}
