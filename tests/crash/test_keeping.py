"""A rotation and a purge are killed after each of their steps; the next one finishes, and nothing is half done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from codec.vocabulary import FINAL_STATUSES
from tests.support.hosts import Host, nothing, start_host
from tests.support.nursery import nursery
from tests.support.stores import FILES, database_url
from worker.adapters.sql.engine import Database
from worker.adapters.sql.migrate import migrate
from worker.adapters.sql.purge import SqlPurging
from worker.ports.keeping import Wanted

pytestmark = pytest.mark.crash

RUNS: Final = 5
_SECONDS: Final = 60.0


@asynccontextmanager
async def hosted(folder: Path, url: str) -> AsyncIterator[Host]:
    """Start a host of an installation as a process would: it must always be possible."""
    database = Database.open(url)
    try:
        yield await start_host(database, folder / "keys.json")
    finally:
        await database.close()


async def regate(folder: Path, url: str, *arguments: str, kill_after: int) -> int:
    """Run the command, which kills itself after this step unless it has ended before; gives its exit code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
    env |= {"REGATE_DATA_DIR": str(folder), "REGATE_DATABASE_URL": url, "KILL_AFTER": str(kill_after)}
    out, err = folder / "out", folder / "err"
    start = partial(nursery().start, out=out, err=err, arguments=(*arguments, "--json"))
    child = await asyncio.to_thread(start, "tests.support.crash_keeping", env)
    code = await asyncio.to_thread(child.code.result, _SECONDS)
    assert code in (0, -9), err.read_text()
    return code


async def killed_at(kind: str, folder: Path, number: int, story: Callable[[Path, str, int], Awaitable[bool]]) -> bool:
    """Tell a story in an installation of its own, with the kill after this step; gives whether it came to that."""
    await asyncio.to_thread(folder.mkdir)
    with database_url(kind, folder) as url:
        if kind == "sqlite":
            await asyncio.to_thread(migrate, url)
        return await story(folder, url, number)


async def at_every_step(kind: str, folder: Path, story: Callable[[Path, str, int], Awaitable[bool]]) -> int:
    """Tell a story with a kill after every step, until it comes to its end without; gives how many kills it were."""
    for number in count(1):
        if not await killed_at(kind, folder / str(number), number, story):
            return number - 1
    raise AssertionError("it never ends")


async def rotation(folder: Path, url: str, number: int) -> bool:
    async with hosted(folder, url) as host:
        await host.fill(RUNS)
        made, old = host.made, host.ring.active

    code = await regate(folder, url, "keys", "rotate", kill_after=number)

    async with hosted(folder, url) as host:
        host.made = made
        assert host.made == await host.opened(), number
        await host.catalogue.export()
        assert await host.under() <= set(host.ring.keys)
        done = await host.rotate()
        assert () == done.left
    async with hosted(folder, url) as host:
        host.made = made
        assert {done.active} == await host.under(), number
        assert host.made == await host.opened()
        await host.catalogue.export()
        assert (done.active, old) == (host.ring.active, next(iter(host.ring.keys)))
        assert ["key_added", "key_activated"] == [decision for decision, _ in await host.audited()][:2]
        # Nothing of the change that was killed is left beside the file.
        assert {"keys.json", ".keys.json.lock"} == await asyncio.to_thread(names, folder)
    return code == -9


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "keys" in path.name}


async def purge(folder: Path, url: str, number: int) -> bool:
    async with hosted(folder, url) as host:
        await host.fill(0)
        uuids = await host.add_runs(RUNS)
        await host.end(uuids)

    code = await regate(folder, url, "purge", "--older-than", "1s", "--yes", kill_after=number)

    async with hosted(folder, url) as host:
        before = await purged(host)
        wanted = Wanted(statuses=tuple(FINAL_STATUSES), before=1e9)
        done = await SqlPurging(host.database, url).purge(wanted, actor="ada", via="test", progress=nothing)
        assert RUNS == len(before) + done
        assert set(uuids) == await purged(host)
    return code == -9


async def purged(host: Host) -> set[str]:
    """Give the runs that are purged, having seen that each is whole or purged whole, with one row of the audit."""
    rows = await host.select(
        "SELECT uuid, wrapped_key, (SELECT count(*) FROM doc WHERE run_uid = run.uid) AS documents,"
        " (SELECT count(*) FROM audit WHERE run = uuid AND decision = 'run_purged') AS audits FROM run"
    )
    gone = {row["uuid"] for row in rows if row["wrapped_key"] is None}
    for row in rows:
        assert (int(row["uuid"] not in gone), int(row["uuid"] in gone)) == (row["documents"], row["audits"])
    return gone


@pytest.mark.parametrize("kind", FILES)
async def test_a_rotation_survives_a_kill_after_every_step(kind: str, tmp_path: Path) -> None:
    """Adding and activating, each in the file and in the database, and every batch of runs and records."""
    assert 10 <= await at_every_step(kind, tmp_path, rotation)


@pytest.mark.parametrize("kind", FILES)
async def test_a_purge_survives_a_kill_after_every_step(kind: str, tmp_path: Path) -> None:
    assert 3 == await at_every_step(kind, tmp_path, purge)
