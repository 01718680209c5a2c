"""Start-up with a key ring: database and file belong together, or nothing starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.stores import FILES, database_url, new_run, open_database
from tests.support.world import eventually
from worker.adapters.sealing import KeyRing, KeyRingError
from worker.adapters.sql import keys
from worker.adapters.sql.create import create_run
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import ensure_ring, holds_sealed, register_ring, verify_ring
from worker.adapters.sql.tables import audit, key_ring
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


def activated(ring: KeyRing) -> KeyRing:
    return ring.activated(ring.newest)


async def audited(database: Database) -> list[tuple[str, str, str]]:
    columns = sa.select(audit.c.decision, audit.c.detail, audit.c.actor).order_by(audit.c.uid)
    rows = await database.read(lambda connection: connection.execute(columns).all())
    return [(row.decision, row.detail, row.actor) for row in rows]


async def test_a_rotated_ring_becomes_the_active_one(database: Database, path: Path) -> None:
    old = await ensure_ring(database, path)
    assert [] == await audited(database)
    new = activated(old.grown())
    new.save(path)

    assert new == await ensure_ring(database, path)

    assert [new.active] == await active(database)
    told = [("key_added", new.newest, "regate"), ("key_activated", new.newest, "regate")]
    assert told == await audited(database)
    with pytest.raises(KeyRingError, match=f"lacks {new.active}"):
        await database.read(verify_ring, old)


async def test_a_key_that_is_only_in_the_file_becomes_known(database: Database, path: Path) -> None:
    """Whoever added it was killed before the database knew of it."""
    old = await ensure_ring(database, path)
    new = old.grown()
    new.save(path)

    assert new == await ensure_ring(database, path)

    assert [old.active] == await active(database)
    known = await database.read(lambda connection: set(connection.execute(sa.select(key_ring.c.id)).scalars()))
    assert {*new.keys, "subkey"} == known
    assert [("key_added", new.newest, "regate")] == await audited(database)


async def test_a_host_whose_file_is_older_follows_the_rotation(database: Database, path: Path) -> None:
    """It has the key and still names the older one active; it neither refuses to start nor takes the rotation back."""
    grown = (await ensure_ring(database, path)).grown()
    activated(grown).save(path)
    await ensure_ring(database, path)
    grown.save(path)

    rings = [await ensure_ring(database, path) for _ in range(2)]

    assert [activated(grown)] * 2 == rings
    assert [grown.newest] == await active(database)


async def test_hosts_with_different_files_agree(database: Database, path: Path, tmp_path: Path) -> None:
    """They start at once; the newer of their active keys is the database's in the end, whoever came last."""
    grown = (await ensure_ring(database, path)).grown()
    paths = [path, *(tmp_path / f"host-{number}.json" for number in range(5))]
    for number, host in enumerate(paths):
        if host != path:
            host.touch()
        (activated(grown) if number % 2 else grown).save(host)

    await asyncio.gather(*(ensure_ring(database, host) for host in paths))

    assert [grown.newest] == await active(database)
    assert activated(grown) == await ensure_ring(database, path)


@pytest.mark.parametrize("kind", FILES)
async def test_a_start_that_waits_for_another_one_agrees_with_it(kind: str, tmp_path: Path) -> None:
    """It has seen the older key active, and writes after the other has made the newer one active."""
    path = tmp_path / "keys.json"
    written, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "before_commit":
            written.set()
            go_on.wait(20)

    async def register(url: str, ring: KeyRing) -> None:
        database = Database.open(url, fault=hold)
        await database.transact(register_ring, ring)
        await database.close()

    with database_url(kind, tmp_path) as url:
        database = Database.open(url)
        if kind == "sqlite":
            await database.create_all()
        grown = (await ensure_ring(database, path)).grown()
        await database.transact(register_ring, grown)
        newer = asyncio.create_task(asyncio.to_thread(asyncio.run, register(url, activated(grown))))
        await eventually(written.is_set, "the newer key is written")
        older = asyncio.create_task(database.transact(register_ring, grown))
        if kind == "postgresql":
            here = "datname = current_database()"
            waiting = sa.text(f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {here}")
            await eventually(lambda: database.read(lambda c: c.execute(waiting).first()), "the other one waits")
        go_on.set()
        await newer

        assert activated(grown) == await older
        assert [grown.newest] == await active(database)
        await database.close()
