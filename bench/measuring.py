"""What a case is given, and how it is measured. Standard library only: peers use it too."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Case", "Usage", "drive", "peak_mb", "percentiles", "pooled", "usage", "warm_up"]

_WARM: Final = 20
"""Runs before the measurement begins, at most: imports, prepared statements, caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement in one process.

    Shape: `url` is an SQLAlchemy URL without a driver, of an empty database; `folder` is this case's own.
    Units: no run is begun after `seconds`; those under way end.
    """

    name: str
    engine: str
    url: str
    folder: Path
    concurrency: int
    runs: int
    seconds: float

    def url_for(self, driver: str) -> str:
        """Give the URL with a driver: `aiosqlite`, `asyncpg`, `psycopg`."""
        engine, rest = self.url.split(":", 1)
        return f"{engine}+{driver}:{rest}"

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return Path(self.url.removeprefix("sqlite:///"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What this process has used until now: seconds on the clock, seconds of CPU (user and system, all threads)."""

    wall_s: float
    cpu_s: float


def usage() -> Usage:
    """Look at the clock and at this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(wall_s=time.perf_counter(), cpu_s=used.ru_utime + used.ru_stime)


async def pooled(concurrency: int, runs: int, seconds: float, one: Callable[[], Awaitable[object]]) -> int:
    """Keep `concurrency` runs in flight until `runs` were begun or `seconds` are over; give the number begun."""
    ends_at = time.perf_counter() + seconds
    begun = 0

    async def lane() -> None:
        nonlocal begun
        while begun < runs and (begun < concurrency or time.perf_counter() < ends_at):
            begun += 1
            await one()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, runs)):
            group.create_task(lane())
    return begun


async def warm_up(case: Case, one: Callable[[], Awaitable[object]]) -> None:
    """Do some runs that are not measured."""
    await pooled(case.concurrency, min(case.concurrency, _WARM), case.seconds, one)


async def drive(case: Case, most: int, one: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    """Measure runs per second and CPU per run, in `most` runs or for the case's seconds."""
    before = usage()
    runs = await pooled(case.concurrency, most, case.seconds, one)
    after = usage()
    wall_s = after.wall_s - before.wall_s
    return {
        "runs": runs,
        "seconds": round(wall_s, 3),
        "runs_per_s": runs / wall_s,
        "cpu_ms_per_run": 1000 * (after.cpu_s - before.cpu_s) / runs,
        "rss_mb": peak_mb(),
    }


def peak_mb() -> float:
    """Peak resident memory of this process in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Give p50 and p99 in milliseconds; of fewer than a hundred values the p99 is their maximum."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "values": len(ordered),
        "p50_ms": 1000 * ordered[last // 2],
        "p99_ms": 1000 * ordered[min(last, round(last * 0.99 + 0.49))],
    }
