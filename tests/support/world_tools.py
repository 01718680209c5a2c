"""Further tools for tests of the runtime: they fail, block, repeat or reach out on demand.

Each execution is noted in the ledger of `tests.support.example_tools`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from tests.support.example_tools import LEDGER
from worker.tools import NotExecuted, ToolCallInfo, tool

_LOOK_S: Final = 0.005
_LOOKS: Final = 6000


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


def _schema(*required: str, **properties: str) -> dict[str, Any]:
    found = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": found, "required": list(required)}


@tool(data_class="public_content", parameters=_schema("text", text="string"))
def echo(text: str, *, call: ToolCallInfo) -> str:
    """Give the text back."""
    _note("echo", call)
    return text


@tool(data_class="public_content", parameters=_schema("word", word="string"))
def explode(word: str, *, call: ToolCallInfo) -> str:
    """Raise an exception that quotes its argument."""
    _note("explode", call)
    raise RuntimeError(f"{word} {call.run}")


@tool(effect="non_idempotent_write", data_class="public_content", parameters=_schema("word", word="string"))
def explode_writing(word: str, *, call: ToolCallInfo) -> str:
    """Write once, then raise, so that nobody knows what happened."""
    _note("explode_writing", call)
    raise RuntimeError(word)


@tool(effect="non_idempotent_write", data_class="public_content", parameters=_schema("word", word="string"))
def refuse_writing(word: str) -> str:
    """Say that nothing happened."""
    raise NotExecuted(word)


@tool(data_class="secret_adjacent", parameters=_schema())
def read_secret(*, call: ToolCallInfo) -> str:
    """Read something that only few may see."""
    _note("read_secret", call)
    return "the secret"


@tool(effect="non_idempotent_write", data_class="public_content", requires_admin=True, parameters=_schema())
def admin_write(*, call: ToolCallInfo) -> str:
    """Write something that only admins may."""
    _note("admin_write", call)
    return "written"


@tool(effect="non_idempotent_write", data_class="public_content", parameters=_schema("n", n="integer"))
def write(n: int, *, call: ToolCallInfo) -> str:
    """Write once and for all."""
    _note("write", call, n=n)
    return f"wrote {n}"


@tool(data_class="public_content", requires_approval=True, parameters=_schema())
def gated_read(*, call: ToolCallInfo) -> str:
    """Read what a person must allow."""
    _note("gated_read", call)
    return "read"


@tool(
    effect="idempotent_write",
    data_class="public_content",
    requires_approval=True,
    parameters=_schema("gate", gate="string"),
)
async def write_at(gate: str, *, call: ToolCallInfo) -> str:
    """Note the start, wait until the file `gate` is there, then note the end."""
    _note("write_at", call)
    await _until(Path(gate))
    return "passed"


@tool(effect="non_idempotent_write", data_class="public_content", parameters=_schema("gate", gate="string"))
async def write_once_at(gate: str, *, call: ToolCallInfo) -> str:
    """Note the start, wait until the file `gate` is there, then return."""
    _note("write_once_at", call)
    await _until(Path(gate))
    return "passed"


@tool(data_class="public_content", parameters=_schema("gate", gate="string"))
async def read_at(gate: str, *, call: ToolCallInfo) -> str:
    """Note the start, wait until the file `gate` is there, then return."""
    _note("read_at", call)
    await _until(Path(gate))
    return "passed"


@tool(data_class="public_content", parameters=_schema())
async def die(*, call: ToolCallInfo) -> str:
    """Note the start, and end the process a moment later."""
    _note("die", call)
    await asyncio.sleep(0.2)
    os._exit(1)


@tool(
    effect="non_idempotent_write",
    data_class="public_content",
    parameters=_schema("gate", gate="string"),
    timeout_s=0.2,
)
async def write_deaf(gate: str, *, call: ToolCallInfo) -> str:
    """Wait until the file `gate` is there, whatever anybody says meanwhile."""
    _note("write_deaf", call)
    waiting = asyncio.ensure_future(_until(Path(gate)))
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
    return "passed"


@tool(data_class="public_content", parameters=_schema("gate", gate="string"))
async def hog(gate: str, *, call: ToolCallInfo) -> str:
    """Hold up the whole event loop until the file `gate` is there."""
    _note("hog", call)
    _hold_up(Path(gate))
    return "passed"


@tool(effect="non_idempotent_write", data_class="public_content", parameters=_schema("gate", gate="string"))
async def hog_writing(gate: str, *, call: ToolCallInfo) -> str:
    """Write, and hold up the whole event loop until the file `gate` is there."""
    _note("hog_writing", call)
    _hold_up(Path(gate))
    return "passed"


def _hold_up(path: Path) -> None:
    for _ in range(_LOOKS):
        if os.access(path, os.F_OK):
            return
        time.sleep(_LOOK_S)


async def _until(path: Path) -> None:
    for _ in range(_LOOKS):
        if os.access(path, os.F_OK):
            return
        await asyncio.sleep(_LOOK_S)
