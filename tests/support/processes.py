"""Worker processes for tests: started with the settings of a folder, waited for, and ended at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import certifi
import redis

from tests.support.example_tools import LEDGER
from tests.support.nursery import Child, nursery
from tests.support.world import TOOLS, World, eventually, open_world
from worker.adapters.embedded_valkey import EmbeddedValkey
from worker.adapters.redis_signals import RedisSignals

__all__ = ["LEASE_S", "SWEEP_S", "Fleet", "Worker", "environment", "fleet", "start", "worker_process"]

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
        "SSL_CERT_FILE": str(_one_authority(folder)),
        **more,
    }


def _one_authority(folder: Path) -> Path:
    """Make a file of one trusted authority. Nothing here speaks TLS, and reading all of them costs a process 60 ms."""
    found = folder / "authority.pem"
    if not found.exists():
        first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
        found.write_text(first + end)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A started process."""

    child: Child
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return None if self.child.lives else self.child.code.result()

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self.child.signal(number)

    async def ended(self) -> int:
        """Wait for its end and give the exit code."""
        async with asyncio.timeout(_START_S):
            return await asyncio.wrap_future(self.child.code)

    def logged(self) -> str:
        """Give everything that it wrote to stderr."""
        return self.log.read_text()

    def events(self) -> list[dict[str, Any]]:
        """Give its log lines."""
        return [json.loads(line) for line in self.logged().splitlines() if line.startswith("{")]


async def start(
    env: Mapping[str, str], *, module: str = "tests.support.worker_process", name: str, arguments: Sequence[str] = ()
) -> Worker:
    """Start `main()` of a module. Its stderr and stdout are files of this name in the data folder."""
    folder = Path(env["REGATE_DATA_DIR"])
    out, log = folder / f"{name}.out", folder / f"{name}.log"
    begin = partial(nursery().start, module, env, out=out, err=log, arguments=arguments)
    return Worker(child=await asyncio.to_thread(begin), log=log)


@asynccontextmanager
async def worker_process(
    env: Mapping[str, str],
    *,
    module: str = "tests.support.worker_process",
    name: str = "worker",
    arguments: Sequence[str] = (),
) -> AsyncIterator[Worker]:
    """Start a worker, wait until it takes wake-ups, and kill it at the end if it still runs.

    A process that ends before it is ready is given too: it may have been told to.
    """
    out = Path(env["REGATE_DATA_DIR"]) / f"{name}.out"
    out.unlink(missing_ok=True)
    worker = await start(env, module=module, name=name, arguments=arguments)
    try:
        ready = lambda: worker.returncode is not None or (out.exists() and "ready" in out.read_text())  # noqa: E731
        await eventually(ready, f"the process {name} is ready", seconds=_START_S)
        yield worker
    finally:
        worker.signal(signal.SIGKILL)
        await worker.ended()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Workers on one queue, and the installation as this process sees it. Nothing here drives a run."""

    world: World
    signals: RedisSignals
    client: redis.Redis
    server: EmbeddedValkey
    env: dict[str, str]
    workers: list[Worker]
    stack: AsyncExitStack

    async def add(
        self, name: str, *, module: str = "tests.support.worker_process", arguments: Sequence[str] = (), **more: str
    ) -> Worker:
        """Start one more worker; `more` are variables of its own."""
        process = worker_process(self.env | more, module=module, name=name, arguments=arguments)
        worker = await self.stack.enter_async_context(process)
        self.workers.append(worker)
        return worker


@asynccontextmanager
async def fleet(
    folder: Path,
    workers: int,
    *,
    url: str | None = None,
    lease_s: float = LEASE_S,
    checks: bool = True,
    **variables: str,
) -> AsyncIterator[Fleet]:
    """Start a queue and this many worker processes.

    `url` = a database that has its schema already, else a new SQLite file. `variables` are for all workers.
    """
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EmbeddedValkey(folder))
        opened = open_world(
            folder, claims=False, migrated=True, url=url, checks=checks, lease_s=lease_s, sweep_s=SWEEP_S
        )
        world = await stack.enter_async_context(opened)
        world.signals.down = True
        signals = RedisSignals(server.url)
        stack.push_async_callback(signals.close)
        client = stack.enter_context(redis.Redis.from_url(server.url))
        database = {} if url is None else {"REGATE_DATABASE_URL": url}
        env = environment(folder, server.url, REGATE_LEASE_SECONDS=str(lease_s), **database, **variables)
        found = Fleet(
            world=world, signals=signals, client=client, server=server, env=env, workers=[], stack=AsyncExitStack()
        )
        await stack.enter_async_context(found.stack)
        async with asyncio.TaskGroup() as starting:
            for number in range(workers):
                starting.create_task(found.add(f"worker{number}"))
        yield found
