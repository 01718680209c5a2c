"""Random deaths for minutes, under load: `python -m tests.crash.soak --minutes 5 --seed 1 [--engine postgresql]`.

Workers are killed, drained, stopped for longer than a lease and replaced; Redis is emptied, killed and stopped; server
processes of PostgreSQL are ended; programs die while they enqueue; editors edit, people answer and cancel. At the end
everybody who is left finishes, and every promise is checked. Ends with 1 when one was broken; the folder stays then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import redis

from codec.actor import LOCAL
from codec.vocabulary import RunStatus
from tests.support.crash_load import ROUNDS, Load, people
from tests.support.engines import engine_url
from tests.support.postgres import server
from tests.support.processes import Fleet, Worker, fleet, start
from worker.ports.records import RunFilter
from worker.ports.runs import StoreError
from worker.runtime.errors import RuntimeFault

__all__ = ["main"]

LEASE_S: Final = 2.0
WORKERS: Final = 3
IN_FLIGHT: Final = 25
_SETTLE_S: Final = 120.0
_TROUBLE: Final = (StoreError, RuntimeFault, redis.RedisError, ProcessLookupError)
"""What a disturbed system answers, or one that has ended; whoever meets it tries something else."""


class Soak:
    """Does harm to a fleet, at random and repeatably as far as processes allow."""

    def __init__(self, found: Fleet, load: Load, url: str, seed: int) -> None:
        self._found = found
        self._load = load
        self._url = url
        self._random = random.Random(seed)
        self._started = 0
        self.done: Counter[str] = Counter()

    async def go_on(self, until: float) -> None:
        """Do harm until that monotonic second."""
        harms: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.kill),
            (4, self.drain),
            (2, self.hurry),
            (4, self.stop),
            (3, self.flush),
            (2, self.kill_redis),
            (1, self.stop_redis),
            (3, self.edit),
            (4, self.cancel),
            (3, self.kill_client),
            (4 if self._url.startswith("postgresql") else 0, self.end_backends),
        ]
        weights = [weight for weight, _ in harms]
        while time.monotonic() < until:
            _, harm = self._random.choices(harms, weights)[0]
            with suppress(*_TROUBLE):
                await harm()
                self.done[harm.__name__.replace("_", " ")] += 1
            await asyncio.sleep(self._random.uniform(0.1, 1.0))

    async def keep_coming(self, until: float) -> None:
        """Enqueue, so that about as many runs are always under way."""
        while time.monotonic() < until:
            with suppress(*_TROUBLE):
                under_way = await self._load.rows(frozenset(RunStatus) - {RunStatus.COMPLETED, RunStatus.CANCELLED})
                await self._load.enqueue(max(0, IN_FLIGHT - len(under_way)))
            await asyncio.sleep(0.2)

    async def renew(self) -> None:
        """Begin one more worker, as a supervisor does."""
        self._started += 1
        await self._found.add(f"worker-{self._started}")

    def living(self) -> list[Worker]:
        """Give the workers that run."""
        return [w for w in self._found.workers if w.returncode is None]

    # --- harm

    async def kill(self) -> None:
        (await self._any()).signal(signal.SIGKILL)
        await self.renew()

    async def drain(self) -> None:
        (await self._any()).signal(signal.SIGTERM)
        await self.renew()

    async def hurry(self) -> None:
        """Ask twice."""
        worker = await self._any()
        worker.signal(signal.SIGTERM)
        await asyncio.sleep(self._random.uniform(0.0, 0.3))
        worker.signal(signal.SIGTERM)
        await self.renew()

    async def stop(self) -> None:
        """Let one stand still, often for longer than its lease; others go on with its runs."""
        worker = await self._any()
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.2, 2.0) * LEASE_S)
        worker.signal(signal.SIGCONT)

    async def _any(self) -> Worker:
        """Choose a worker; when all have ended already, their supervisor is asked first."""
        if not self.living():
            await self.renew()
        return self._random.choice(self.living())

    async def flush(self) -> None:
        self._found.client.flushall()

    async def kill_redis(self) -> None:
        os.kill(self._redis(), signal.SIGKILL)

    async def stop_redis(self) -> None:
        pid = self._redis()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        os.kill(pid, signal.SIGCONT)

    def _redis(self) -> int:
        return int(self._found.client.info("server")["process_id"])

    async def edit(self) -> None:
        """Change what every run carries, but not so that one would be refused."""
        fields: dict[str, Any] = self._random.choice(
            [
                {"text": f"Be kind, {self._random.random()}."},
                {"data_class": "editor_content"},
                {"data_class": "public_content"},
                {"active": False},
                {"active": True},
            ]
        )
        await self._found.world.change("snippet", "tone", **fields)

    async def cancel(self) -> None:
        rows = await self._load.rows((RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_FOR_APPROVAL))
        if rows:
            uuid = self._random.choice(rows).uuid
            self._load.cancelled.add(uuid)  # first: who is told of a failure does not know whether it was done
            await self._found.world.runtime.cancel(LOCAL, uuid, via="test")

    async def kill_client(self) -> None:
        """Enqueue from a program that dies at any moment; the next one asks for the same run again."""
        self._started += 1
        words = ("enqueue", "support", "tone", f"key-{self._started}")
        for attempt in range(2):
            name = f"client-{self._started}-{attempt}"
            client = await start(self._found.env, module="tests.support.crash_client", name=name, arguments=words)
            if attempt == 0:
                await asyncio.sleep(self._random.uniform(0.02, 0.4))
                client.signal(self._random.choice((signal.SIGKILL, signal.SIGTERM)))
            await client.ended()
        known = set(self._load.uuids)
        rows = await self._found.world.store.runs(RunFilter(limit=4 * IN_FLIGHT))
        self._load.uuids += [row.uuid for row in rows if row.uuid not in known]

    async def end_backends(self) -> None:
        name = self._url.rsplit("/", 1)[1]
        chosen = "SELECT pid FROM pg_stat_activity WHERE datname = $1 ORDER BY random() LIMIT 3"
        connection = await import_module("asyncpg").connect(server().url)
        try:
            await connection.fetch(f"SELECT pg_terminate_backend(pid) FROM ({chosen}) c", name)
        finally:
            await connection.close()


async def soak(folder: Path, engine: str, minutes: float, seed: int) -> list[str]:
    """Do harm for so long, then see that everything holds; gives the lines of the summary."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(engine_url(engine, folder))
        found = await stack.enter_async_context(fleet(folder, WORKERS, url=url, lease_s=LEASE_S))
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=150)
        harm = Soak(found, load, url, seed)
        until = time.monotonic() + 60 * minutes
        async with people(load):
            async with asyncio.TaskGroup() as group:
                group.create_task(harm.go_on(until))
                group.create_task(harm.keep_coming(until))
            while len(harm.living()) < WORKERS:
                await harm.renew()
            await load.ended(_SETTLE_S)
        disturbed = time.monotonic() - began
        lost = await load.check()
        return await _summary(load, harm, engine, disturbed, lost)


async def _summary(load: Load, harm: Soak, engine: str, seconds: float, lost: int) -> list[str]:
    rows = await load.rows()
    ended = Counter(row.status.value for row in rows)
    sends = Counter((line["run"], line["round"]) for line in load.world.sent())
    completed = {row.uuid for row in rows if row.status is RunStatus.COMPLETED}
    extra = sum(n for (run, _), n in sends.items() if run in completed) - ROUNDS * len(completed)
    deaths = harm.done["kill"] + harm.done["hurry"] + harm.done["stop"]
    return [
        f"{engine}, {seconds:.0f} s: {len(rows)} runs, {', '.join(f'{n} {status}' for status, n in ended.items())}",
        f"harm: {', '.join(f'{n} × {what}' for what, n in sorted(harm.done.items()))}",
        f"segments lost and recovered: {lost}; sends repeated: {extra}, {extra / max(1, deaths):.1f} a worker lost",
        f"people were asked {load.settled.total()} times what became of a write,"
        f" and said {load.told_to_run.total()} times that it had not happened",
        "no run lost, no write made twice, no journal with a gap, every replay equal",
    ]


def main() -> int:
    """Soak, and say how it went."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="regate-soak-"))
    try:
        lines = asyncio.run(soak(folder, given.engine, given.minutes, given.seed))
    except BaseException:
        sys.stderr.write(f"seed {given.seed}; everything is in {folder}\n")
        raise
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
