"""5,000 runs of ours that wait for their model in one process: what memory they hold, and what work W does beside them.

A run that waits for a person holds no process at all; what costs memory is a model that takes its time.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any, Final

from bench.installation import SCRIPT, Bench, open_bench, request
from bench.measuring import Case, drive, pooled, warm_up

__all__ = ["measure"]

_SLOW_MS: Final = 300_000
"""The model's answer comes after the end of the measurement."""
_SETTLE_S: Final = 60.0


async def measure(case: Case) -> dict[str, Any]:
    """Measure with `case.runs` waiting runs; work W at `case.concurrency` for `case.seconds`, without and with them."""
    scripts = {"w": {"reply": SCRIPT}, "slow": {"reply": [{"text": "late", "delay_ms": _SLOW_MS}]}}
    room = str(case.runs + 1000)
    async with open_bench(case, scripts, drain_s=0.0, REGATE_MAX_RUNS=room) as bench:
        await warm_up(case, bench.work_w)
        alone = await drive(case, 10**6, bench.work_w)
        before = _resident()
        await _fill(bench, case.runs)
        held = _resident()
        beside = await drive(case, 10**6, bench.work_w)
        assert bench.host.running >= case.runs, bench.host.running
    return {
        "waiting": case.runs,
        "rss_before_mb": before,
        "rss_mb": held,
        "kb_per_waiting_run": 1000 * (held - before) / case.runs,
        "runs_per_s_alone": alone["runs_per_s"],
        "runs_per_s": beside["runs_per_s"],
    }


async def _fill(bench: Bench, runs: int) -> None:
    """Enqueue runs and wait until each one's send has begun."""
    bench.sent.counts.clear()

    async def one() -> None:
        await bench.runtime.enqueue(request("slow"))

    await pooled(100, runs, 10 * _SETTLE_S, one)
    async with asyncio.timeout(_SETTLE_S):
        await bench.sent.by(runs)


def _resident() -> float:
    """Resident memory of this process now, in MB (10^6 bytes). Source: proc(5), statm."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
