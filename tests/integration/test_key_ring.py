"""Start-up with a key ring: database and file belong together, or nothing starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.stores import FILES, new_run, open_database
from worker.adapters.sealing import KeyRing, KeyRingError
from worker.adapters.sql import keys
from worker.adapters.sql.create import create_run
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import ensure_ring, holds_sealed, verify_ring
from worker.adapters.sql.tables import key_ring
from worker.ports.records import Document


@pytest.fixture(params=FILES)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(request.param, tmp_path) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


async def seal_something(database: Database) -> None:
    document = Document(kind="request", version=1, seq=0, payload=b"sealed")
    await database.transact(create_run, new_run(documents=(document,)))


def list_rings(path: Path) -> list[Path]:
    return list(path.parent.glob("*.json"))


def lose(path: Path) -> None:
    path.unlink()


async def active(database: Database) -> list[str]:
    statement = sa.select(key_ring.c.id).where(key_ring.c.active)
    return await database.read(lambda connection: list(connection.execute(statement).scalars()))


async def test_the_first_start_makes_a_ring_and_the_next_finds_it(database: Database, path: Path) -> None:
    ring = await ensure_ring(database, path)
    await seal_something(database)

    assert ring == await ensure_ring(database, path)
    assert [ring.active] == await active(database)
    await database.read(verify_ring, ring)
    assert await database.read(holds_sealed)


async def test_many_first_starts_end_with_one_ring(database: Database, path: Path) -> None:
    rings = await asyncio.gather(*(ensure_ring(database, path) for _ in range(5)))

    assert [rings[0]] * 5 == rings
    assert [rings[0].active] == await active(database)


async def test_a_start_that_is_overtaken_takes_the_ring_of_the_other(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw no file; by the time it looks into the database, another one has made and registered the ring."""
    ring = await ensure_ring(database, path)
    look, seen = keys._load_if_there, iter([None])
    monkeypatch.setattr(keys, "_load_if_there", lambda path: next(seen, look(path)))

    assert ring == await ensure_ring(database, path)


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_lost_file_is_not_replaced(database: Database, path: Path, sealed: bool) -> None:
    await ensure_ring(database, path)
    if sealed:
        await seal_something(database)
    lose(path)

    with pytest.raises(KeyRingError, match="is missing"):
        await ensure_ring(database, path)

    assert [] == list_rings(path)


async def test_sealed_data_without_a_known_ring_refuses_both(database: Database, path: Path) -> None:
    await seal_something(database)

    with pytest.raises(KeyRingError, match="is missing"):
        await ensure_ring(database, path)
    KeyRing.create(path)
    with pytest.raises(KeyRingError, match="does not know"):
        await ensure_ring(database, path)

    assert [] == await active(database)


async def test_another_ring_is_refused(database: Database, path: Path) -> None:
    ring = await ensure_ring(database, path)
    lose(path)
    other = KeyRing.create(path)

    with pytest.raises(KeyRingError, match="another one"):
        await ensure_ring(database, path)
    with pytest.raises(KeyRingError, match="differs"):
        await database.read(verify_ring, KeyRing(keys={ring.active: b"x" * 32}, active=ring.active, subkey=ring.subkey))

    assert [ring.active] == await active(database)
    assert other.active != ring.active


async def test_a_rotated_ring_becomes_the_active_one(database: Database, path: Path) -> None:
    old = await ensure_ring(database, path)
    new = old.rotate(path)

    assert new == await ensure_ring(database, path)

    assert [new.active] == await active(database)
    with pytest.raises(KeyRingError, match=f"lacks {new.active}"):
        await database.read(verify_ring, old)
