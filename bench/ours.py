"""Work W by ours, whole: journal, gate, sealing, chain. Enqueued, claimed, suspended, answered, claimed, completed."""

from __future__ import annotations

from typing import Any

from bench.installation import SCRIPT, open_bench
from bench.measuring import Case, drive, warm_up
from bench.storage import PAYLOADS, per_run, stored

__all__ = ["measure"]


async def measure(case: Case) -> dict[str, Any]:
    """Measure one concurrency on one engine."""
    async with open_bench(case, {"w": {"reply": SCRIPT}}) as bench:
        await warm_up(case, bench.work_w)
        before = await stored(case, PAYLOADS)
        found = await drive(case, case.runs, bench.work_w)
        return found | per_run(before, await stored(case, PAYLOADS), found["runs"])
