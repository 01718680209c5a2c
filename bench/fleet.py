"""Real processes of ours: an embedded Valkey, `regate worker` processes, and this process as the one that enqueues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bench.installation import apply, environment, request
from bench.measuring import Case
from codec.actor import LOCAL
from worker.bootstrap import migrate_database, open_installation
from worker.runtime.answers import Verdicts
from worker.runtime.service import Runtime
from worker.settings import Settings

__all__ = ["RECORD", "Fleet", "Rest", "open_fleet"]

RECORD: Final = "sent.jsonl"
"""Where scripted providers of a fleet may note what they receive, in the folder of the case."""
_ROOT: Final = Path(__file__).parents[1]
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_LOOK_S: Final = 0.005
"""Seconds between two looks at the runs that somebody waits for: one statement for all of them."""
_RESTS: Final = ("waiting_for_approval", "completed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A run that waits for a person or has ended."""

    status: str
    question: str | None


class Watch:
    """Looks at the database for everybody who waits for a run."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._wanted: dict[str, tuple[str, asyncio.Future[Rest]]] = {}
        self._query = sa.text("SELECT uuid, status, question, created_at, finished_at FROM run WHERE uuid IN :uuids")
        self._query = self._query.bindparams(sa.bindparam("uuids", expanding=True))

    async def rest(self, uuid: str, status: str) -> Rest:
        """Wait until a run has this status. Errors: `AssertionError` when it failed."""
        future: asyncio.Future[Rest] = asyncio.get_running_loop().create_future()
        self._wanted[uuid] = (status, future)
        found = await future
        assert found.status == status, found
        return found

    async def rows(self, uuids: Sequence[str]) -> list[Any]:
        """Read rows by uuid."""
        if self._case.engine == "sqlite":
            return await asyncio.to_thread(self._read, uuids)
        async with self._postgres.connect() as connection:
            return list((await connection.execute(self._query, {"uuids": uuids})).all())

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look until the end."""
        if self._case.engine == "sqlite":
            self._sqlite = sa.create_engine(self._case.url)
        else:
            self._postgres = create_async_engine(self._case.url_for("asyncpg"))
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if self._case.engine == "sqlite":
                self._sqlite.dispose()
            else:
                await self._postgres.dispose()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for row in await self.rows(list(self._wanted)) if self._wanted else ():
                status, future = self._wanted.get(row.uuid, ("", None))
                if future is not None and row.status in (status, "failed"):
                    del self._wanted[row.uuid]
                    future.set_result(Rest(status=row.status, question=row.question))

    def _read(self, uuids: Sequence[str]) -> list[Any]:
        with self._sqlite.connect() as connection:
            return list(connection.execute(self._query, {"uuids": uuids}).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Workers on one queue, and this process as their client."""

    case: Case
    runtime: Runtime
    watch: Watch

    async def enqueue(self, configuration: str = "w") -> str:
        """Enqueue a run and give its uuid."""
        return (await self.runtime.enqueue(request(configuration))).uuid

    async def approve(self, uuid: str, rest: Rest) -> None:
        """Approve what a waiting run asks."""
        assert rest.question is not None
        await self.runtime.decide(LOCAL, uuid, rest.question, Verdicts(default=True, calls={}), via="bench")

    async def work_w(self) -> str:
        """Do work W once: enqueue, wait for the question, approve, wait for the end."""
        uuid = await self.enqueue()
        await self.approve(uuid, await self.watch.rest(uuid, "waiting_for_approval"))
        await self.watch.rest(uuid, "completed")
        return uuid

    def sends(self) -> dict[tuple[str, int], float]:
        """Give when each send arrived at the scripted provider, by run and round, in seconds since the epoch."""
        lines = (json.loads(line) for line in (self.case.folder / RECORD).read_bytes().splitlines())
        return {(line["run"], line["round"]): line["at"] for line in lines}


@asynccontextmanager
async def open_fleet(case: Case, scripts: Mapping[str, Mapping[str, Any]], *, workers: int = 1) -> AsyncIterator[Fleet]:
    """Start workers and wait until they take wake-ups."""
    env = environment(case, REGATE_BROKER_URL="embedded", REGATE_LOG="json")
    settings = Settings.load(env)
    await asyncio.to_thread(migrate_database, settings)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_installation(settings, kind="runtime"))
        await apply(opened.runtime, case.folder, scripts)
        async with asyncio.TaskGroup() as starting:
            for number in range(workers):
                worker = _worker(case.folder / f"worker{number}.log", env)
                starting.create_task(stack.enter_async_context(worker))
        watch = Watch(case)
        await stack.enter_async_context(watch.looking())
        yield Fleet(case=case, runtime=opened.runtime, watch=watch)


@asynccontextmanager
async def _worker(log: Path, env: Mapping[str, str]) -> AsyncIterator[None]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "worker.cli", "worker", cwd=_ROOT, env={**inherited, **env}, stderr=stderr
        )
    try:
        await asyncio.to_thread(_await_line, log, b"worker.ready", lambda: process.returncode is None)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _await_line(log: Path, word: bytes, lives: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + _START_S
    while word not in log.read_bytes():
        assert lives() and time.monotonic() < ends_at, log.read_text()[-2000:]
        time.sleep(0.02)
