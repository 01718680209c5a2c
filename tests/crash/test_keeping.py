"""A rotation and a purge are struck after each of their steps; the next one finishes, and nothing is half done.

By SIGKILL on SQLite; with REGATE_TEST_CRASH=full by SIGTERM and on PostgreSQL too.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from codec.vocabulary import FINAL_STATUSES
from tests.support.engines import only_in_full
from tests.support.hosts import Host, nothing, start_host
from tests.support.nursery import nursery
from tests.support.stores import database_url
from worker.adapters.sql.engine import Database
from worker.adapters.sql.migrate import migrate
from worker.adapters.sql.purge import SqlPurging
from worker.ports.keeping import Wanted

pytestmark = pytest.mark.crash

RUNS: Final = 5
KINDS: Final = ["sqlite", only_in_full("postgresql")]
SIGNALS: Final = [pytest.param(signal.SIGKILL, id="SIGKILL"), only_in_full(signal.SIGTERM)]
_SECONDS: Final = 60.0


class Strike(NamedTuple):
    """A signal after a step, counted from 1."""

    step: int
    signal: int


Story = Callable[[Path, str, Strike], Awaitable[bool]]


@asynccontextmanager
async def hosted(folder: Path, url: str) -> AsyncIterator[Host]:
    """Start a host of an installation as a process would: it must always be possible."""
    database = Database.open(url)
    try:
        yield await start_host(database, folder / "keys.json")
    finally:
        await database.close()


async def struck(folder: Path, url: str, *arguments: str, at: Strike) -> bool:
    """Run the command, which strikes itself after a step; gives whether it came to that before its end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
    env |= {"REGATE_DATA_DIR": str(folder), "REGATE_DATABASE_URL": url, "STRIKE": f"{at.step} {at.signal}"}
    out, err = folder / "out", folder / "err"
    start = partial(nursery().start, out=out, err=err, arguments=(*arguments, "--json"))
    child = await asyncio.to_thread(start, "tests.support.crash_keeping", env)
    code = await asyncio.to_thread(child.code.result, _SECONDS)
    assert code in (0, -at.signal), err.read_text()
    return code != 0


async def told(kind: str, folder: Path, at: Strike, story: Story) -> bool:
    """Tell a story in an installation of its own; gives whether it came to the strike."""
    await asyncio.to_thread(folder.mkdir)
    with database_url(kind, folder) as url:
        if kind == "sqlite":
            await asyncio.to_thread(migrate, url)
        return await story(folder, url, at)


async def at_every_step(kind: str, folder: Path, story: Story, number: int) -> int:
    """Tell a story with a strike after every step, until it ends without; gives how many strikes it were."""
    for step in count(1):
        if not await told(kind, folder / str(step), Strike(step, number), story):
            return step - 1
    raise AssertionError("it never ends")


async def rotation(folder: Path, url: str, at: Strike) -> bool:
    async with hosted(folder, url) as host:
        await host.fill(RUNS)
        made, old = host.made, host.ring.active

    was_struck = await struck(folder, url, "keys", "rotate", at=at)

    async with hosted(folder, url) as host:
        host.made = made
        assert host.made == await host.opened(), at
        await host.catalogue.export()
        assert await host.under() <= set(host.ring.keys)
        done = await host.rotate()
        assert () == done.left
    async with hosted(folder, url) as host:
        host.made = made
        assert {done.active} == await host.under(), at
        assert host.made == await host.opened()
        await host.catalogue.export()
        assert (done.active, old) == (host.ring.active, next(iter(host.ring.keys)))
        assert ["key_added", "key_activated"] == [decision for decision, _ in await host.audited()][:2]
        # Nothing of the change that was killed is left beside the file.
        assert {"keys.json", ".keys.json.lock"} == await asyncio.to_thread(names, folder)
    return was_struck


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "keys" in path.name}


async def purge(folder: Path, url: str, at: Strike) -> bool:
    async with hosted(folder, url) as host:
        await host.fill(0)
        uuids = await host.add_runs(RUNS)
        await host.end(uuids)

    was_struck = await struck(folder, url, "purge", "--older-than", "1s", "--yes", at=at)

    async with hosted(folder, url) as host:
        before = await purged(host)
        wanted = Wanted(statuses=tuple(FINAL_STATUSES), before=1e9)
        done = await SqlPurging(host.database, url).purge(wanted, actor="ada", via="test", progress=nothing)
        assert RUNS == len(before) + done
        assert set(uuids) == await purged(host)
    return was_struck


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


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rotation_survives_a_kill_after_every_step(kind: str, number: int, tmp_path: Path) -> None:
    """Adding and activating, each in the file and in the database, and every batch of runs and records."""
    assert 10 <= await at_every_step(kind, tmp_path, rotation, number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_purge_survives_a_kill_after_every_step(kind: str, number: int, tmp_path: Path) -> None:
    assert 3 == await at_every_step(kind, tmp_path, purge, number)
