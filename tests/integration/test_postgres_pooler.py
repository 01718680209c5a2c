"""Behind a pooler that lends connections for one transaction: nothing is left on one, and nothing of others found."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from tests.support.postgres import server
from tests.support.stores import append, audit_row, claim, created, inbox_row, open_store, suspended
from worker.adapters.sql.engine import Database
from worker.ports.records import CommitStatus, RunFilter
from worker.ports.runs import StoreError

pytestmark = pytest.mark.postgres

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
RUNS, STEPS = 10, 10


async def use(url: str) -> None:
    """Do what a process does."""
    async with open_store(url, create=False) as both:
        store = both.store
        rows = [await created(store) for _ in range(RUNS)]
        held = await claim(store, RUNS, uuids=[row.uuid for row in rows])

        async def drive(index: int) -> None:
            for seq in range(1, STEPS + 1):
                assert CommitStatus.COMMITTED == (await store.commit(append(held[index], seq, policy=1))).status
                assert seq == len(await store.entries(held[index].row.uid))

        await asyncio.gather(*(drive(index) for index in range(RUNS)))
        await store.renew([(one.row.uid, one.token) for one in held], 30.0)
        waiting = await suspended(store)
        assert (await store.answer(waiting, inbox_row(), audit_row(), replace=False)).problem is None
        assert 3 == len(await store.runs(RunFilter(limit=3)))


async def sweep(url: str) -> None:
    """Mark what is due. Alone: while a sweep has a row, a claim passes it over."""
    async with open_store(url, create=False) as both:
        await created(both.store)
        assert 1 <= len(await both.store.wakeable(100, 0.0))


def _count(statement: sa.TextClause, connection: sa.Connection) -> int:
    return int(connection.execute(statement).scalar_one())


async def test_nothing_is_left_on_a_connection() -> None:
    with server().clone() as url:
        await use(f"{url}?pooler=transaction")
        await sweep(f"{url}?pooler=transaction")
        database = Database.open(f"{url}?pooler=transaction")
        prepared = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
        settings = sa.text("SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE '%timeout%'")

        for statement in (prepared, settings):
            assert 0 == await database.transact(partial(_count, statement))
        await database.close()


def test_another_kind_of_pooler_is_refused() -> None:
    with pytest.raises(StoreError, match="url"):
        Database.open("postgresql://u@127.0.0.1/d?pooler=statement")


@asynccontextmanager
async def bouncer(url: str, folder: Path) -> AsyncIterator[str]:
    """Run PgBouncer in front of a server, with fewer connections than its clients have."""
    assert PGBOUNCER is not None
    parts = urlsplit(url)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={parts.hostname} port={parts.port} user={parts.username}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        "pool_mode = transaction\ndefault_pool_size = 3\n"
    )
    # It refuses to run as root; what it reads is opened by then.
    command = [PGBOUNCER, *(["-u", "nobody"] if os.getuid() == 0 else []), str(settings)]
    with (folder / "pgbouncer.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stderr=log, stdout=log)
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer")
async def test_three_processes_share_a_pool_that_is_smaller_than_theirs(tmp_path: Path) -> None:
    with server().clone() as url:
        async with bouncer(url, tmp_path) as pooled, asyncio.timeout(120):
            await asyncio.gather(*(use(f"{pooled}?pooler=transaction") for _ in range(3)))
            await sweep(f"{pooled}?pooler=transaction")
