"""`Database`: units of work are whole or absent, snapshots are consistent, and no error shows a value."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.stores import DATABASES, FILES, database_url, open_database
from worker.adapters.sql.catalogue_tables import policy
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.engine import Database
from worker.ports.runs import StoreError

SECRET = "planted-marker"


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(request.param, tmp_path) as database:
        yield database


def put(connection: sa.Connection, name: str, value: str = "") -> None:
    connection.execute(sa.insert(policy).values(name=name, value=value))


def put_and_raise(connection: sa.Connection, name: str, error: Exception) -> None:
    put(connection, name)
    raise error


def names(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(policy.c.name)).scalars()) - {"data_class_enforcement"}


async def test_work_that_raises_is_undone_and_its_error_passes(database: Database) -> None:
    with pytest.raises(KeyError, match="mine"):
        await database.transact(put_and_raise, "a", KeyError("mine"))

    assert set() == await database.read(names)


async def test_units_that_share_a_transaction_are_undone_alone(database: Database) -> None:
    good = [database.transact(put, f"good {i}") for i in range(20)]
    bad = [database.transact(put_and_raise, f"bad {i}", KeyError(i)) for i in range(20)]
    broken = [database.transact(put, "good 0"), database.transact(put, "\ud800")]

    results = await asyncio.gather(*good, *bad, *broken, return_exceptions=True)

    assert [None] * 20 == results[:20]
    assert [KeyError] * 20 == [type(result) for result in results[20:40]]
    assert [str(result) for result in results[40:]] == ["integrity", "data"]
    assert {f"good {i}" for i in range(20)} == await database.read(names)


async def test_work_whose_caller_left_does_not_break_the_rest(database: Database) -> None:
    left = asyncio.create_task(database.transact(put, "left"))
    stays = asyncio.create_task(database.transact(put, "stays"))
    await asyncio.sleep(0)

    left.cancel()
    await stays

    assert "stays" in await database.read(names)


@pytest.mark.parametrize("kind", FILES)
async def test_a_read_sees_one_moment(kind: str, tmp_path: Path) -> None:
    async with open_database(kind, tmp_path) as database:
        loop = asyncio.get_running_loop()

        async def write_between() -> None:
            await database.transact(put, "between")

        def read_twice(connection: sa.Connection) -> tuple[set[str], set[str]]:
            before = names(connection)
            if database.dialect == "sqlite":  # in a thread of its own
                asyncio.run_coroutine_threadsafe(write_between(), loop).result(10)
            else:  # on the loop
                sa.util.await_only(write_between())
            return before, names(connection)

        assert (set(), set()) == await database.read(read_twice)
        assert {"between"} == await database.read(names)


@pytest.mark.parametrize("value", [SECRET + "\ud800", SECRET])
async def test_no_error_shows_a_value(database: Database, value: str) -> None:
    await database.transact(put, SECRET)

    with pytest.raises(StoreError) as failed:
        await database.transact(put, SECRET, value)

    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None
    assert SECRET not in str(failed.value)


async def test_a_statement_that_is_wrong_is_a_store_error(database: Database) -> None:
    def nonsense(connection: sa.Connection) -> None:
        connection.execute(sa.text("NONSENSE"))

    with pytest.raises(StoreError, match="database"):
        await database.transact(nonsense)
    with pytest.raises(StoreError, match="database"):
        await database.read(nonsense)


@pytest.mark.parametrize("kind", FILES)
async def test_the_clock_shifts_for_one_object_alone(kind: str, tmp_path: Path) -> None:
    with database_url(kind, tmp_path) as url:
        shifted, other = Database.open(url), Database.open(url)
        shifted.shift_clock(1000)

        assert 1000 == pytest.approx(await shifted.read(read_now) - await other.read(read_now), abs=5)
        await shifted.close()
        await other.close()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "sqlite", f"postgresql://u:{SECRET}@h:port/db"])
def test_a_url_that_is_none_is_refused_without_it(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        Database.open(url)

    assert "url" == str(refused.value)
    assert refused.value.__context__ is None


async def test_a_file_in_no_folder_is_unavailable(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'none' / 'runs.db'}")

    with pytest.raises(StoreError, match="unavailable"):
        await database.read(names)
    await database.close()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    database = Database.open("postgresql://nobody@127.0.0.1:1/none?sslmode=disable")

    assert "postgresql" == database.dialect
    with pytest.raises(StoreError, match="unavailable"):
        await database.read(names)
    with pytest.raises(StoreError, match="unavailable"):
        await database.transact(names)
    await database.close()
