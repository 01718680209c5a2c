"""Ours end to end: a client enqueues, Valkey carries the wake-up, worker processes do the work."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from bench import work
from bench.fleet import RECORD, Fleet, open_fleet
from bench.installation import SCRIPT, call
from bench.measuring import Case, drive, percentiles, pooled, warm_up

__all__ = ["measure_approve", "measure_idle", "measure_redis", "measure_workers"]

_IDLE_S: Final = 1.0
"""Seconds that a worker had nothing to do before it is woken."""
_READS: Final = [
    {"text": work.THOUGHTS[0], "tool_calls": [call("lookup_order", work.LOOKUP_ARGUMENTS)]},
    {"text": work.THOUGHTS[1], "tool_calls": [call("lookup_order", work.LOOKUP_ARGUMENTS)]},
    {"text": work.ANSWER},
]
"""Work W with a second read in place of the write, so that no person's time is in it."""


async def measure_redis(case: Case) -> dict[str, Any]:
    """One worker: runs per second, and from the row's creation to its end by the database's clock."""
    async with open_fleet(case, {"r": {"reply": _READS}}) as fleet:
        uuids: list[str] = []

        async def one() -> None:
            uuid = await fleet.enqueue("r")
            uuids.append(uuid)
            await fleet.watch.rest(uuid, "completed")

        await warm_up(case, one)
        uuids.clear()
        found = await drive(case, case.runs, one)
        rows = await fleet.watch.rows(uuids)
    return {
        "runs": found["runs"],
        "runs_per_s": found["runs_per_s"],
        **percentiles([row.finished_at - row.created_at for row in rows]),
    }


async def measure_workers(case: Case, workers: int) -> dict[str, Any]:
    """Work W by some workers: runs per second."""
    async with open_fleet(case, {"w": {"reply": SCRIPT}}, workers=workers) as fleet:
        await warm_up(case, fleet.work_w)
        found = await drive(case, case.runs, fleet.work_w)
    return {"workers": workers, "runs": found["runs"], "runs_per_s": found["runs_per_s"]}


async def measure_approve(case: Case) -> dict[str, Any]:
    """One worker: from the call of `decide` to the next send's arrival at the provider."""
    async with open_fleet(case, {"w": {"reply": SCRIPT, "record": RECORD}}) as fleet:
        decided: dict[str, float] = {}
        one = partial(_approve, fleet, decided)
        await warm_up(case, one)
        decided.clear()
        await pooled(case.concurrency, case.runs, case.seconds, one)
        sends = fleet.sends()
    return percentiles([sends[uuid, 3] - at for uuid, at in decided.items()])


async def _approve(fleet: Fleet, decided: dict[str, float]) -> None:
    uuid = await fleet.enqueue()
    rest = await fleet.watch.rest(uuid, "waiting_for_approval")
    decided[uuid] = time.time()
    await fleet.approve(uuid, rest)
    await fleet.watch.rest(uuid, "completed")


async def measure_idle(case: Case) -> dict[str, Any]:
    """One worker that had nothing to do: from the call of `enqueue` to the first send's arrival at the provider."""
    async with open_fleet(case, {"r": {"reply": _READS, "record": RECORD}}) as fleet:
        asked: dict[str, float] = {}
        await fleet.watch.rest(await fleet.enqueue("r"), "completed")
        for _ in range(case.runs):
            await asyncio.sleep(_IDLE_S)
            at = time.time()
            uuid = await fleet.enqueue("r")
            asked[uuid] = at
            await fleet.watch.rest(uuid, "completed")
        sends = fleet.sends()
    return percentiles([sends[uuid, 1] - at for uuid, at in asked.items()])
