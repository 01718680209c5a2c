"""Worker processes for tests: started with the settings of a folder, waited for, and ended at the end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from tests.support.example_tools import LEDGER
from tests.support.world import TOOLS, World, open_world
from worker.adapters.embedded_valkey import EmbeddedValkey
from worker.adapters.redis_signals import RedisSignals

__all__ = ["LEASE_S", "SWEEP_S", "Fleet", "Worker", "environment", "fleet", "worker_process"]

ROOT: Final = Path(__file__).parents[2]
LEASE_S: Final = 1.0
SWEEP_S: Final = 0.2
_START_S: Final = 60.0
"""Seconds for a process to say that it is ready, on a machine that runs many tests at once."""


def environment(folder: Path, broker: str, **more: str) -> dict[str, str]:
    """Give the environment of a process of this folder: nothing of ours is inherited."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
    return inherited | {
        "REGATE_DATA_DIR": str(folder),
        "REGATE_BROKER_URL": broker,
        "REGATE_TOOLS": ",".join(TOOLS),
        "REGATE_LEASE_SECONDS": str(LEASE_S),
        "REGATE_SWEEP_SECONDS": str(SWEEP_S),
        "REGATE_RETRY_SECONDS": "0.1,0.1",
        LEDGER: str(folder / "ledger.jsonl"),
        **more,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A started process."""

    process: asyncio.subprocess.Process
    log: Path

    async def ended(self) -> int:
        """Wait for its end and give the exit code."""
        async with asyncio.timeout(_START_S):
            return await self.process.wait()

    def logged(self) -> str:
        """Give everything that it wrote to stderr."""
        return self.log.read_text()


@asynccontextmanager
async def worker_process(
    env: Mapping[str, str], *, module: str = "tests.support.worker_process", name: str = "worker"
) -> AsyncIterator[Worker]:
    """Start a worker, wait until it takes wake-ups, and kill it at the end if it still runs.

    A process that ends before it is ready is given too: it may have been told to.
    """
    log = Path(env["REGATE_DATA_DIR"]) / f"{name}.log"
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, cwd=ROOT, env=dict(env), stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
        assert line in (b"ready\n", b""), log.read_text()
        yield Worker(process=process, log=log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Workers on one queue, and the installation as this process sees it. Nothing here drives a run."""

    world: World
    signals: RedisSignals
    client: redis.Redis
    server: EmbeddedValkey


@asynccontextmanager
async def fleet(folder: Path, workers: int) -> AsyncIterator[Fleet]:
    """Start a queue and this many worker processes."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EmbeddedValkey(folder))
        world = await stack.enter_async_context(open_world(folder, claims=False, migrated=True, lease_s=LEASE_S))
        world.signals.down = True
        signals = RedisSignals(server.url)
        stack.push_async_callback(signals.close)
        client = stack.enter_context(redis.Redis.from_url(server.url))
        async with asyncio.TaskGroup() as starting:
            for number in range(workers):
                process = worker_process(environment(folder, server.url), name=f"worker{number}")
                starting.create_task(stack.enter_async_context(process))
        yield Fleet(world=world, signals=signals, client=client, server=server)
