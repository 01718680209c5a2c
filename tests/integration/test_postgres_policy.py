"""A catalogue write among many processes that commit without a pause: it is not kept waiting, and it is a border."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.postgres import server
from tests.support.stores import LEASE_S, append, claim, created, entry, open_store, opened
from worker.adapters.sealing import KeyRing, RingSealer
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.commit import commit_steps
from worker.adapters.sql.engine import Database
from worker.adapters.sql.locks import CATALOGUE_KEY, MIGRATION_KEY, POLICY_KEY
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.sql.tables import journal
from worker.ports.catalogue import RecordSpec, Written
from worker.ports.records import Append, Claimed, Commit, CommitStatus
from worker.ports.runs import StoreError

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
WRITERS = 4
RUNS = 16
BUMPS = 25
WAIT_S = 10.0
"""Far above what it takes on a busy machine (0.3 s), far below what it took while others were let in past it."""


async def write(url: str, name: str) -> dict[str, Any]:
    """Commit steps of several runs until the parent closes our input; gives how many were committed."""
    async with open_store(url, create=False) as both:
        store = both.store
        rows = await asyncio.gather(*(created(store, owner=name) for _ in range(RUNS)))
        held = await claim(store, RUNS, token=name, uuids=[row.uuid for row in rows])
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

        async def drive(index: int) -> int:
            seq, policy = 1, 1
            while not ended.done():
                done = await store.commit(append(held[index], seq, policy=policy, entries=(entry(seq, policy=policy),)))
                assert done.status in (CommitStatus.COMMITTED, CommitStatus.POLICY_MOVED)
                policy = done.policy or policy
                seq += done.status is CommitStatus.COMMITTED
            return seq - 1

        sys.stdout.write("ready\n")
        sys.stdout.flush()
        return {"committed": sum(await asyncio.gather(*(drive(index) for index in range(RUNS))))}


class Held:
    """A transaction that commits a step and stays open until it is told to end."""

    def __init__(self, step: Append) -> None:
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self._step = step

    def __call__(self, connection: sa.Connection) -> list[Commit]:
        done = commit_steps(connection, [self._step], LEASE_S)
        self.entered.set()
        sa.util.await_only(self.leave.wait())
        return done


async def until_waiting(database: Database, count: int) -> None:
    """Wait until so many sessions of this database wait for an advisory lock."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
        " WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted"
    )
    async with asyncio.timeout(30):
        while await database.read(lambda connection: connection.execute(waiting).scalar_one()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def switch(database: Database, enabled: bool) -> Written:
    """Write to the catalogue."""
    ring = KeyRing(keys={"k": b"k" * 32}, active="k", subkey=b"s" * 32)
    spec = RecordSpec(kind="tool", identifier="mailer", fields={"enabled": enabled})
    return await SqlCatalogue(database, RingSealer(ring)).apply([spec], prune=False, actor="ana", via="cli")


async def two_held(store: SqlRunStore) -> list[Claimed]:
    await created(store)
    await created(store)
    return await claim(store, 2)


async def test_who_commits_later_stands_behind_a_catalogue_write_that_waits(tmp_path: Path) -> None:
    async with opened("postgresql", tmp_path) as both:
        held = await two_held(both.store)
        inside = Held(append(held[0], 1))
        early = asyncio.create_task(both.database.transact(inside))
        await inside.entered.wait()
        write = asyncio.create_task(switch(both.database, enabled=True))
        await until_waiting(both.database, 1)

        late = asyncio.create_task(both.store.commit(append(held[1], 1)))
        await until_waiting(both.database, 2)
        inside.leave.set()

        assert CommitStatus.COMMITTED == (await early)[0].status
        assert 2 == (await write).version
        found = await late
        assert (CommitStatus.POLICY_MOVED, 2) == (found.status, found.policy)


async def test_a_process_that_stops_inside_a_commit_does_not_stop_the_others(tmp_path: Path) -> None:
    async with opened("postgresql", tmp_path) as both:
        held = await two_held(both.store)
        stopped = Held(append(held[0], 1))
        lost = asyncio.create_task(both.database.transact(stopped))
        await stopped.entered.wait()

        async with asyncio.timeout(20):
            assert 2 == (await switch(both.database, enabled=True)).version
            assert CommitStatus.COMMITTED == (await both.store.commit(append(held[1], 1, policy=2))).status
        stopped.leave.set()
        with pytest.raises(StoreError, match="commit_unknown"):  # the writer asks again
            await lost
        assert [] == await both.store.entries(held[0].row.uid)


def test_the_keys_are_documented() -> None:
    told = (ROOT / "docs" / "postgresql.md").read_text()

    assert all(f"| {key} (" in told for key in (POLICY_KEY, CATALOGUE_KEY, MIGRATION_KEY))


def older(connection: sa.Connection, version: int) -> int:
    """Count the entries of an older policy than this one."""
    counted = sa.select(sa.func.count()).select_from(journal).where(journal.c.policy_version < version)
    return connection.execute(counted).scalar_one()


async def bump_among(url: str, pause_s: float) -> tuple[list[float], dict[int, int]]:
    """Write to the catalogue again and again; gives the seconds of each and what older entries there were after it."""
    database = Database.open(url)
    waits, seen = [], {}
    for number in range(BUMPS):
        began = time.monotonic()
        written = await switch(database, enabled=number % 2 == 0)
        waits.append(time.monotonic() - began)
        seen[written.version] = await database.read(older, written.version)
        await asyncio.sleep(pause_s)
    await database.close()
    return waits, seen


async def test_a_catalogue_write_is_not_starved_and_nothing_older_commits_after_it() -> None:
    with server().clone() as url:
        writers = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.integration.test_postgres_policy",
                url,
                str(number),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            for number in range(WRITERS)
        ]
        async with asyncio.timeout(120):
            for writer in writers:
                assert writer.stdout is not None
                assert b"ready\n" == await writer.stdout.readline()
            waits, seen = await bump_among(url, 0.02)
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.close()
            outputs = [(await writer.communicate())[0] for writer in writers]

        committed = [json.loads(output)["committed"] for output in outputs]
        assert min(committed) > RUNS
        assert max(waits) < WAIT_S
        database = Database.open(url)
        assert seen == {version: await database.read(older, version) for version in seen}
        await database.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(write(sys.argv[1], sys.argv[2]))))
