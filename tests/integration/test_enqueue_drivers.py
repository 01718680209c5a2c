"""What `enqueue(request, connection=…)` leaves as it was, what it waits for, and what it refuses."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.support.postgres import server
from tests.support.world import World, eventually, open_world
from worker.ports.runs import StoreError
from worker.runtime.errors import InvalidError

_SECONDS: Final = 20.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture
def url() -> Iterator[str]:
    with server().clone() as made:
        yield made


@pytest.fixture
async def postgres(tmp_path: Path, url: str) -> AsyncIterator[World]:
    async with open_world(tmp_path, url=url) as opened:
        yield opened


def file(world: World) -> Path:
    return world.folder / "regate.db"


async def refused(world: World, connection: object) -> str:
    """Give the code with which a connection is refused."""
    with pytest.raises(InvalidError) as error:
        await world.runtime.enqueue(world.ask(), connection=connection)
    return error.value.code.removeprefix("connection_")


async def stored(world: World, uuid: str) -> bool:
    return await world.store.run(uuid) is not None


# --- SQLite


class Odd(sqlite3.Connection):
    """A connection whose cursors are somebody's own."""

    def cursor(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("not asked for")


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


async def test_a_connection_of_sqlite3_stays_as_it_was(world: World) -> None:
    """Factories, isolation and functions; none of them is in our way."""
    with closing(sqlite3.connect(file(world), factory=Odd, isolation_level="IMMEDIATE")) as connection:
        connection.row_factory = as_dict
        connection.text_factory = bytes
        handle = await world.runtime.enqueue(world.ask(), connection=connection)
        assert connection.in_transaction
        assert (as_dict, bytes) == (connection.row_factory, connection.text_factory)
        assert "IMMEDIATE" == connection.isolation_level
        with pytest.raises(sqlite3.OperationalError, match="no such function"):
            connection.execute("SELECT regexp('a', 'a')")
        connection.commit()
    assert await stored(world, handle.uuid)


async def test_an_open_immediate_transaction_holds_nobody_up_but_writers(world: World) -> None:
    """The policy is read beside it; what regate writes itself waits for its end."""
    with closing(sqlite3.connect(file(world), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE orders (id integer)")
        async with asyncio.timeout(_SECONDS):
            handle = await world.runtime.enqueue(world.ask(), connection=connection)
            own = asyncio.create_task(world.runtime.enqueue(world.ask()))
            assert [] == await world.select("SELECT uuid FROM run")
            assert not own.done()
            connection.execute("COMMIT")
            other = await own
    assert await stored(world, handle.uuid)
    assert await stored(world, other.uuid)
    await world.rest(other.uuid)


async def test_a_transaction_that_begins_with_the_run_waits_for_a_writer(world: World) -> None:
    """One that began with a read could not, and a driver begins deferred ones."""
    with closing(sqlite3.connect(file(world), isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE orders (id integer)")
        threading.Timer(0.1, writer.execute, ("COMMIT",)).start()
        with closing(sqlite3.connect(file(world), timeout=_SECONDS)) as connection:
            handle = await world.runtime.enqueue(world.ask(), connection=connection)
            assert not writer.in_transaction
            connection.commit()
    assert await stored(world, handle.uuid)


async def test_sqlalchemys_recipe_for_savepoints_is_known(world: World) -> None:
    """The driver begins nothing, and a listener says BEGIN. A savepoint of the caller's takes the run back."""
    engine = sa.create_engine(f"sqlite:///{file(world)}")

    @sa.event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    try:
        with engine.connect() as connection:
            kept = await world.runtime.enqueue(world.ask(), connection=connection)
            with connection.begin_nested() as savepoint:
                undone = await world.runtime.enqueue(world.ask(), connection=connection)
                savepoint.rollback()
            connection.commit()
    finally:
        engine.dispose()
    assert (True, False) == (await stored(world, kept.uuid), await stored(world, undone.uuid))


async def test_scoped_sessions_are_sessions(world: World) -> None:
    """Sync, as Flask's extension hands them out, and async."""
    engine = sa.create_engine(f"sqlite:///{file(world)}")
    session: scoped_session[Session] = scoped_session(sessionmaker(engine))
    first = await world.runtime.enqueue(world.ask(), connection=session)
    session.commit()
    session.remove()
    engine.dispose()

    async_engine = create_async_engine(f"sqlite+aiosqlite:///{file(world)}")
    async_session = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    second = await world.runtime.enqueue(world.ask(), connection=async_session)
    await async_session.commit()
    await async_session.remove()
    await async_engine.dispose()
    assert (True, True) == (await stored(world, first.uuid), await stored(world, second.uuid))


async def test_what_cannot_wait_longer_is_busy(world: World) -> None:
    """Another transaction writes; or wrote since this one's snapshot, which no waiting mends."""
    with (
        closing(sqlite3.connect(file(world), isolation_level=None)) as first,
        closing(sqlite3.connect(file(world), isolation_level=None, timeout=0.05)) as second,
    ):
        first.execute("BEGIN IMMEDIATE")
        second.execute("BEGIN")
        with pytest.raises(StoreError, match="busy"):
            await world.runtime.enqueue(world.ask(), connection=second)
        second.execute("SELECT uuid FROM run").fetchall()
        first.execute("CREATE TABLE orders (id integer)")
        first.execute("COMMIT")
        with pytest.raises(StoreError, match="busy"):
            await world.runtime.enqueue(world.ask(), connection=second)
        second.execute("ROLLBACK")
        second.execute("BEGIN")
        handle = await world.runtime.enqueue(world.ask(), connection=second)
        second.execute("COMMIT")
    assert await stored(world, handle.uuid)


async def test_a_wake_up_that_fails_is_logged_and_nothing_else(world: World) -> None:
    """The sweeper finds the run."""
    world.signals.broken = True
    with closing(sqlite3.connect(file(world))) as connection:
        handle = await world.runtime.enqueue(world.ask(), connection=connection)
        connection.commit()
        handle.wake()
        await world.runtime.woken()
    assert ("wake.failed", {"error": "RuntimeError"}) in world.logs
    world.signals.broken = False


async def test_what_is_no_connection_is_refused(world: World) -> None:
    """With one clear code, whatever it is."""
    engine = sa.create_engine("sqlite://")
    async with aiosqlite.connect(file(world)) as other:
        with closing(sqlite3.connect(file(world))) as connection:
            for given in ("", 7, object(), engine, connection.cursor(), other, asyncpg.Pool):
                assert "unsupported" == await refused(world, given), given


async def test_a_connection_that_cannot_be_used_here_is_refused(world: World) -> None:
    """Closed, another thread's, read-only."""
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(sqlite3.connect, file(world)).result()
        assert "other_thread" == await refused(world, theirs)
        other.submit(theirs.close).result()

    closed = sqlite3.connect(file(world))
    closed.close()
    assert "closed" == await refused(world, closed)

    engine = sa.create_engine(f"sqlite:///{file(world)}")
    with engine.connect() as connection:
        pass
    assert "closed" == await refused(world, connection)
    engine.dispose()

    with closing(sqlite3.connect(f"file:{file(world)}?mode=ro", uri=True)) as reading:
        assert "not_permitted" == await refused(world, reading)


# --- PostgreSQL


@pytest.mark.postgres
async def test_a_connection_of_psycopg_stays_as_it_was(postgres: World, url: str) -> None:
    """Its rows are dicts, its cursors are another kind, and it is in autocommit with a transaction begun by hand."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        with connection.transaction():
            handle = await postgres.runtime.enqueue(postgres.ask(), connection=connection)
            assert not await stored(postgres, handle.uuid)
        assert connection.autocommit
        assert connection.isolation_level is None
        assert (dict_row, psycopg.ClientCursor) == (connection.row_factory, connection.cursor_factory)
    assert await stored(postgres, handle.uuid)


@pytest.mark.postgres
async def test_a_connection_of_psycopg2_stays_as_it_was(postgres: World, url: str) -> None:
    """Its cursors give dicts."""
    made = psycopg2.connect(url, connection_factory=psycopg2.extras.RealDictConnection)
    with closing(made) as connection:
        isolation = connection.isolation_level
        handle = await postgres.runtime.enqueue(postgres.ask(), connection=connection)
        assert not await stored(postgres, handle.uuid)
        assert (False, isolation) == (connection.autocommit, connection.isolation_level)
        connection.commit()
    assert await stored(postgres, handle.uuid)


@pytest.mark.postgres
async def test_a_connection_of_asyncpg_stays_as_it_was(postgres: World, url: str) -> None:
    """JSON is text on it before and afterwards; and it may be a pool's, whose server knows the statements of others."""
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        last = (await connection.prepare("SELECT 1")).get_name()
        number = int(re.sub(r"[^0-9a-f]", "", last.rpartition("stmt_")[2]), 16)
        for other in range(number + 1, number + 50):
            await connection.execute(f"PREPARE __asyncpg_stmt_{other:x}__ AS SELECT 1")
        async with connection.transaction():
            handle = await postgres.runtime.enqueue(postgres.ask(), connection=connection)
        await connection.execute("DEALLOCATE ALL")
        await connection.reload_schema_state()
        assert "{}" == await connection.fetchval("SELECT '{}'::jsonb")
    assert await stored(postgres, handle.uuid)


@pytest.mark.postgres
@pytest.mark.parametrize("commits", [True, False])
async def test_of_two_with_one_key_the_second_waits(postgres: World, url: str, commits: bool) -> None:
    """For the first one's end: then it has that run, or one of its own."""
    engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+asyncpg"))
    request = postgres.ask(idempotency_key="order-1")
    async with asyncio.timeout(_SECONDS), engine.connect() as first, engine.connect() as second:
        handle = await postgres.runtime.enqueue(request, connection=first)
        waiting = asyncio.create_task(postgres.runtime.enqueue(request, connection=second))
        await eventually(lambda: _blocked(postgres), "the second waits")
        assert not waiting.done()
        await (first.commit() if commits else first.rollback())
        again = await waiting
        await second.commit()
    await engine.dispose()
    assert commits is not again.is_new
    assert commits is (handle.uuid == again.uuid)
    assert await stored(postgres, again.uuid)


async def _blocked(world: World) -> bool:
    return bool(
        await world.select(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.postgres
async def test_a_snapshot_that_is_too_old_is_a_conflict(postgres: World, url: str) -> None:
    """The key was used since it was taken; the caller's transaction has to be repeated."""
    engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+asyncpg"))
    request = postgres.ask(idempotency_key="order-1")
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        await connection.execute(sa.text("SELECT 1 FROM run"))
        first = await postgres.runtime.enqueue(request)
        with pytest.raises(StoreError, match="conflict"):
            await postgres.runtime.enqueue(request, connection=connection)
        await connection.rollback()
        assert first.uuid == (await postgres.runtime.enqueue(request, connection=connection)).uuid
    await engine.dispose()
    await postgres.rest(first.uuid)


@pytest.mark.postgres
async def test_a_transaction_that_cannot_write_is_refused(postgres: World, url: str) -> None:
    """It has failed, is read-only, or its role lacks the rights; none of these makes it worse."""
    engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+asyncpg"))
    async with engine.connect() as connection:
        with pytest.raises(sa.exc.ProgrammingError):
            await connection.execute(sa.text("SELECT * FROM nothing"))
        assert "aborted" == await refused(postgres, connection)
        await connection.rollback()

        await connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        assert "not_permitted" == await refused(postgres, connection)
        await connection.rollback()

        await connection.execute(sa.text("SET LOCAL ROLE pg_monitor"))
        assert "not_permitted" == await refused(postgres, connection)
        assert 1 == (await connection.execute(sa.text("SELECT 1"))).scalar_one()
    await engine.dispose()


@pytest.mark.postgres
async def test_a_connection_whose_server_went_away_is_disconnected(postgres: World, url: str) -> None:
    """Nothing was written; what is left of it is its owner's."""
    with psycopg.connect(url) as connection:
        pid = connection.info.backend_pid
        await postgres.select(f"SELECT pg_terminate_backend({pid})")
        with pytest.raises(StoreError, match="disconnected"):
            await postgres.runtime.enqueue(postgres.ask(), connection=connection)
