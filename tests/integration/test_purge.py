"""Purging: what runs said is gone for good, what is known about them stays, and nobody stumbles over the rest."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from codec.actor import LOCAL
from codec.vocabulary import FINAL_STATUSES, RunStatus
from codec.wire import Shown
from tests.support.hosts import nothing, start_host
from tests.support.stores import FILES, database_url, open_database
from tests.support.world import World, call, open_world, reply
from worker.adapters.sql import purge
from worker.adapters.sql.purge import SqlPurging
from worker.adapters.sql.remains import SqliteFile
from worker.ports.keeping import KeepingError, Wanted
from worker.ports.records import RunFilter
from worker.runtime.errors import ConflictError

MARKER = "marker-of-a-text"
SOON = 4e9
"""Later than any run of a test ends."""


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def world(url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, url=url if url.startswith("postgresql") else None) as world:
        yield world


def purging(world: World) -> SqlPurging:
    return SqlPurging(world.database, f"sqlite:///{world.folder / 'regate.db'}")


async def purged(world: World, *uuids: str, **wanted: Any) -> int:
    """Purge everything that has ended, and leave these runs out of the checks at the end."""
    world.damaged |= set(uuids)
    which = replace(Wanted(statuses=tuple(FINAL_STATUSES), before=SOON), **wanted)
    return await purging(world).purge(which, actor="grace", via="test", progress=nothing)


async def answered(world: World) -> Shown:
    """Run with everything: a carried source, a call that somebody approves, an answer."""
    world.script(reply("", call("refund_order", order=7)), reply(MARKER))
    asked = await world.queue(world.ask(MARKER, snippets=["tone"]))
    await world.decide(asked.uuid)
    return await world.rest(asked.uuid)


async def failed(world: World) -> str:
    """Run until it fails in a way that a person may continue."""
    world.script(reply(fail={"status": 400}))
    shown = await world.run()
    assert RunStatus.FAILED is shown.status
    return shown.uuid


# --- what goes and what stays


async def sealed(world: World, uuid: str) -> dict[str, list[Any]]:
    """Give everything that is sealed of a run, as it is stored."""
    uid = (await world.row(uuid)).uid
    tables = {
        table: [
            bytes(row["payload"])
            for row in await world.select(f"SELECT payload FROM {table} WHERE run_uid = :uid", uid=uid)
        ]
        for table in ("doc", "journal", "inbox")
    }
    keys = await world.select("SELECT wrapped_key FROM run WHERE uid = :uid", uid=uid)
    return {**tables, "run": [row["wrapped_key"] for row in keys]}


async def clear(world: World, uuid: str) -> dict[str, list[dict[str, Any]]]:
    """Give everything else that is stored about a run."""
    uid = (await world.row(uuid)).uid
    found = {"run": await world.select("SELECT * FROM run WHERE uid = :uid", uid=uid)}
    for table in ("journal", "inbox", "run_source", "exposure"):
        found[table] = await world.select(f"SELECT * FROM {table} WHERE run_uid = :uid", uid=uid)
    for row in (row for rows in found.values() for row in rows):
        row.pop("payload", None)
        row.pop("wrapped_key", None)
    return found


async def test_what_it_said_goes_and_what_is_known_stays(world: World) -> None:
    shown = await answered(world)
    before = await clear(world, shown.uuid)
    assert all(before.values())

    assert 1 == await purged(world, shown.uuid)

    left = await sealed(world, shown.uuid)
    assert ([], [None]) == (left["doc"], left["run"])
    assert {b""} == set(left["journal"]) | set(left["inbox"])
    assert before == await clear(world, shown.uuid)
    [row] = await world.audit(shown.uuid, "run_purged")
    assert ("grace", "test", "support") == (row.actor, row.via, row.configuration)


async def test_readers_say_that_it_was_purged(world: World) -> None:
    before = await answered(world)
    events = await world.runtime.events(LOCAL, before.uuid)

    await purged(world, before.uuid)

    shown = await world.show(before.uuid)
    assert (True, None, None) == (shown.purged, shown.answer, shown.blocked)
    assert (before.status, before.usage, before.started_by) == (shown.status, shown.usage, shown.started_by)
    assert set(before.carried) == set(shown.carried)
    assert before.uuid in {row.uuid for row in await world.runtime.runs(LOCAL, RunFilter())}
    assert events == await world.runtime.events(LOCAL, before.uuid)
    with pytest.raises(ConflictError) as refused:
        await world.runtime.replay(LOCAL, before.uuid)
    assert ("purged", before.uuid) == (refused.value.code, refused.value.uuid)


async def test_a_late_decider_is_still_told_who_came_first(world: World) -> None:
    world.script(reply("", call("refund_order", order=7)), reply("done"))
    asked = await world.queue()
    assert asked.waiting is not None
    await world.decide(asked.uuid)
    await world.rest(asked.uuid)

    await purged(world, asked.uuid)

    with pytest.raises(ConflictError) as refused:
        await world.decide(asked.uuid, question=asked.waiting.question)
    assert ("already_answered", "local") == (refused.value.code, refused.value.decided_by)


async def test_a_purged_run_cannot_be_continued(world: World) -> None:
    uuid = await failed(world)
    assert [uuid] == [row.uuid for row in await world.runtime.runs(LOCAL, RunFilter(dead=True))]

    await purged(world, uuid)

    assert [] == await world.runtime.runs(LOCAL, RunFilter(dead=True))
    with pytest.raises(ConflictError) as refused:
        await world.runtime.requeue(LOCAL, uuid, via="test")
    assert "purged" == refused.value.code


async def test_a_run_that_goes_on_from_a_purged_one_is_whole(world: World) -> None:
    uuid = await failed(world)
    world.script(reply("", call("refund_order", order=7)), reply("done"))
    again = (await world.runtime.requeue(LOCAL, uuid, via="test")).uuid
    asked = await world.rest(again)

    assert 1 == await purged(world, uuid)

    assert asked == await world.show(again)
    await world.decide(again)
    shown = await world.rest(again)
    assert ("done", uuid) == (shown.answer, None if shown.lineage is None else shown.lineage.from_)
    assert (await world.runtime.replay(LOCAL, again)).equal


async def test_an_idempotency_key_still_stands_for_a_purged_run(world: World) -> None:
    request = world.ask(idempotency_key="order-7")
    first = await world.queue(request)

    await purged(world, first.uuid)

    handle = await world.runtime.enqueue(request)
    assert (first.uuid, False) == (handle.uuid, handle.is_new)
    assert (await world.rest(handle.uuid)).purged


# --- which


async def test_only_what_ended_before_is_purged(world: World) -> None:
    now = await world.store.now()
    done = (await world.run()).uuid
    dead = await failed(world)
    world.script(reply("", call("refund_order", order=7)), reply("done"))
    waits = (await world.queue()).uuid
    gone = (await world.queue()).uuid
    await world.runtime.cancel(LOCAL, gone, via="test")

    assert 0 == await purged(world, before=now)
    assert 1 == await purged(world, dead, statuses=(RunStatus.FAILED,))
    assert 1 == await purged(world, gone, statuses=(RunStatus.CANCELLED,))
    wanted = Wanted(statuses=tuple(FINAL_STATUSES), before=SOON)
    assert 1 == await purging(world).count(wanted)
    assert 1 == await purged(world, done)
    assert 0 == await purged(world)

    assert {done, dead, gone} == {row.uuid for row in await world.store.runs(RunFilter()) if row.purged}
    assert not (await world.show(waits)).purged


async def test_a_cancelled_run_is_left_while_its_segment_may_append(world: World) -> None:
    done = (await world.run()).uuid
    await world.alter("UPDATE run SET status = 'cancelled', token = 't1'")

    assert 0 == await purged(world)

    await world.alter("UPDATE run SET token = NULL")
    assert 1 == await purged(world, done)


async def test_the_oldest_go_first(world: World) -> None:
    uuids = [(await world.run()).uuid for _ in range(3)]
    await world.alter("UPDATE run SET status = 'failed', reason = 'provider_failed' WHERE uuid = :uuid", uuid=uuids[0])
    wanted = Wanted(statuses=tuple(FINAL_STATUSES), before=SOON, limit=2)
    assert 2 == await purging(world).count(wanted)

    assert 2 == await purged(world, *uuids, limit=2, statuses=(RunStatus.COMPLETED, RunStatus.FAILED))

    assert uuids[:2] == [row.uuid for row in reversed(await world.store.runs(RunFilter())) if row.purged]


async def test_transactions_stay_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs, and in entries of their journals; a run with more of these than a transaction holds goes alone."""
    monkeypatch.setattr(purge, "_BATCH", 3)
    uuids = [(await world.run()).uuid for _ in range(6)]
    for index, entries in enumerate([1, 4_000, 2_000, 9_000, 1, 1]):
        await world.alter("UPDATE run SET seq = :seq WHERE uuid = :uuid", seq=entries, uuid=uuids[index])
    world.damaged |= set(uuids)
    told: list[tuple[int, int]] = []

    done = await purging(world).purge(
        Wanted(statuses=(RunStatus.COMPLETED,), before=SOON),
        actor="grace",
        via="test",
        progress=lambda done, of: told.append((done, of)),
    )

    assert 6 == done
    assert [(2, 6), (3, 6), (4, 6), (6, 6)] == told


# --- with others


async def test_purges_and_a_rotation_at_once_do_no_harm(url: str, tmp_path: Path) -> None:
    kind = "postgresql" if url.startswith("postgresql") else "sqlite"
    async with open_database(kind, tmp_path) as database:
        host = await start_host(database, tmp_path / "keys.json")
        await host.fill(0)
        uuids = await host.add_runs(900)
        await host.end(uuids[:600])
        purging = SqlPurging(database, url)
        wanted = Wanted(statuses=(RunStatus.COMPLETED,), before=SOON)

        async def destroy() -> int:
            return await purging.purge(wanted, actor="grace", via="test", progress=nothing)

        first, second, rotation = await asyncio.gather(destroy(), destroy(), host.rotate())

        assert 600 == first + second
        rows = await host.select("SELECT uuid, key_id, wrapped_key FROM run")
        assert set(uuids[:600]) == {row["uuid"] for row in rows if row["wrapped_key"] is None}
        assert {rotation.active} == {row["key_id"] for row in rows if row["wrapped_key"] is not None}
        host.made = {uuid: said for uuid, said in host.made.items() if uuid in uuids[600:]}
        assert host.made == await host.opened()
        purges = await host.select("SELECT run FROM audit WHERE decision = 'run_purged'")
        assert sorted(uuids[:600]) == sorted(row["run"] for row in purges)


# --- what a file of SQLite keeps


def stored(folder: Path) -> bytes:
    """Everything in the database's files."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("regate.db*")))


def pieces(sealed: Any) -> list[bytes]:
    """Cut what is sealed: the whole of it may lie on several pages."""
    whole = bytes(sealed)
    return [whole[start : start + 20] for start in range(0, len(whole) - 19, 20)]


@pytest.mark.parametrize("compact", [False, True])
async def test_neither_keys_nor_ciphertext_linger_in_the_file(tmp_path: Path, compact: bool) -> None:
    async with open_world(tmp_path) as world:
        uuids = [(await answered(world)).uuid for _ in range(5)]
        kept = await answered(world)
        parts = [await sealed(world, uuid) for uuid in uuids]
        secrets = [piece for found in parts for rows in found.values() for row in rows for piece in pieces(row)]
        others = [pieces(row)[0] for rows in (await sealed(world, kept.uuid)).values() for row in rows]
        found = sum(secret in stored(tmp_path) for secret in secrets)
        assert found > 0.9 * len(secrets)  # where a page ends, so does a piece
        assert [] == [secret for secret in others if secret not in stored(tmp_path)]

        assert 5 == await purged(world, *uuids, limit=5)
        await purging(world).wipe(compact=compact)

        assert [] == [secret for secret in secrets if secret in stored(tmp_path)]
        assert [] == [secret for secret in others if secret not in stored(tmp_path)]
        assert kept == await world.show(kept.uuid)


async def test_compacting_finds_what_was_left_inside_of_the_file(tmp_path: Path) -> None:
    """As by a build of SQLite, or a program, that does not overwrite what it deletes."""
    async with open_world(tmp_path) as world:
        shown = await answered(world)
        [wrapped] = (await sealed(world, shown.uuid))["run"]
        with closing(sqlite3.connect(tmp_path / "regate.db")) as other:
            other.execute("PRAGMA secure_delete = OFF")
            other.execute("CREATE TABLE copy AS SELECT wrapped_key FROM run")
            other.execute("DROP TABLE copy")
            other.commit()
        await purged(world, shown.uuid)

        await purging(world).wipe(compact=False)
        assert bytes(wrapped) in stored(tmp_path)
        await purging(world).wipe(compact=True)
        assert bytes(wrapped) not in stored(tmp_path)


async def test_a_reader_that_does_not_go_on_is_told(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        shown = await world.run()
        with closing(sqlite3.connect(tmp_path / "regate.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM run").fetchone()
            await purged(world, shown.uuid)
            with pytest.raises(KeepingError, match="somebody reads") as refused:
                SqliteFile(tmp_path / "regate.db", wait_s=0.1).wipe(compact=False)
        assert "not_wiped" == refused.value.code

        await purging(world).wipe(compact=False)

        assert 0 == (tmp_path / "regate.db-wal").stat().st_size


def test_only_a_file_is_wiped(tmp_path: Path) -> None:
    assert SqliteFile(tmp_path / "regate.db") == SqliteFile.of(f"sqlite:///{tmp_path / 'regate.db'}")
    assert [None] * 3 == [SqliteFile.of(url) for url in ("sqlite://", "sqlite:///:memory:", "postgresql://h/d")]
