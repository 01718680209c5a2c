"""A dozen cells of the re-gate's matrix, driven by a real worker process on a real queue."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from codec.actor import LOCAL
from tests.integration.test_matrix import (
    ASKS,
    CASES,
    NAMES,
    check_finished,
    check_refused,
    document,
    edit,
)
from tests.support.processes import Fleet, fleet
from tests.support.world import reply

CELLS: Final = [
    ("nothing", "snippet", "approval"),
    ("class raised", "skill", "approval"),
    ("class lowered", "snippet", "input"),
    ("text changed and lowered", "skill", "approval"),
    ("deactivated and re-pointed", "snippet", "approval"),
    ("deactivated and re-pointed", "skill", "input"),
    ("deleted", "snippet", "input"),
    ("provider re-pointed", "snippet", "approval"),
    ("zone changed", "skill", "input"),
    ("fallback added", "snippet", "approval"),
    ("observe to enforce", "snippet", "input"),
    ("enforce to observe", "skill", "approval"),
]


async def cell(found: Fleet, name: str, kind: str, asks: str) -> None:
    """Ask, edit, answer, look; point back and resume what was refused. Only the worker drives."""
    world, case = found.world, CASES[name]
    await world.apply(document(case))
    world.script(reply("", ASKS[asks]), reply("done"))
    given = [await world.uid(kind, NAMES[kind])]
    names = [NAMES[kind]]
    request = world.ask(snippets=names) if kind == "snippet" else world.ask(skills=names)
    uuid = (await world.runtime.enqueue(request)).uuid
    await found.signals.wake([uuid])
    waiting = await world.rest(uuid)

    await edit(world, kind, case.edits)
    await world.answer(uuid)
    await found.signals.wake([uuid])
    shown = await world.rest(uuid)

    if case.verdict == "refused":
        await check_refused(world, case, kind, waiting)
        await edit(world, kind, case.undo)
        await world.runtime.resume(LOCAL, uuid, via="test")
        await found.signals.wake([uuid])
        shown = await world.rest(uuid)
    await check_finished(world, case, kind, shown, given)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_worker_process_judges_as_this_process_does(tmp_path: Path, workers: int) -> None:
    async with fleet(tmp_path, workers) as found:
        for name, kind, asks in CELLS:
            await cell(found, name, kind, asks)
