"""Rotation of the key ring: everything stays open, whatever is interrupted, done twice, lost or changed meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from codec.vocabulary import RunStatus
from tests.support.hosts import Host, nothing, start_host
from tests.support.stores import FILES, audit_row, database_url, open_database
from tests.support.world import World, eventually, open_world
from worker.adapters.sealing import KeyRing, KeyRingError
from worker.adapters.sql.catalogue_read import read_version
from worker.adapters.sql.engine import Database
from worker.adapters.sql.purge import purge_runs
from worker.adapters.sql.rewrap import find_under, rewrap_rows
from worker.adapters.sql.rotation import SqlKeys
from worker.adapters.sql.tables import key_ring, run
from worker.ports.keeping import KeepingError
from worker.ports.records import RunFilter
from worker.ports.runs import StoreError

TEXTS: Final = 4
"""Records of the catalogue that hold a text, a deleted one among them."""


@pytest.fixture(params=FILES)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(request.param, tmp_path) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
async def host(database: Database, path: Path) -> Host:
    host = await start_host(database, path)
    await host.fill(7)
    return host


async def whole(host: Host) -> None:
    """See that every run and every text of the catalogue opens to what was sealed."""
    assert host.made == await host.opened()
    texts = {spec.identifier: dict(spec.fields) for spec in await host.catalogue.export()}
    assert ("You answer.", "Be kind.", "Refund rules.") == (
        texts["support"]["system_prompt"],
        texts["tone"]["text"],
        texts["refunds"]["body"],
    )


def copied(host: Host, path: Path) -> Path:
    """Copy the ring to another host."""
    shutil.copy(host.path, path)
    return path


# --- adding and listing


async def test_an_added_key_is_known_and_not_used(host: Host) -> None:
    old = host.ring.active

    added = await host.add_key()

    assert (old, added) == (host.ring.active, host.ring.newest)
    assert {old} == await host.under()
    rows = await host.keys.keys()
    assert [(old, True, True, True, 7, TEXTS), (added, False, True, True, 0, 0)] == [
        (row.id, row.active, row.here, row.known, row.runs, row.records) for row in rows
    ]
    assert all(row.created_at is not None for row in rows)
    assert [("key_added", added)] == await host.audited()


async def test_what_cannot_be_opened_is_listed(host: Host) -> None:
    [first, second, *_] = await host.add_runs(2)
    await host.change([first], key_id="k-lost")
    await host.change([second], key_id="k-lost", wrapped_key=None)

    [_, lost] = await host.keys.keys()

    assert ("k-lost", False, False, False, 1, 0) == (
        lost.id,
        lost.active,
        lost.here,
        lost.known,
        lost.runs,
        lost.records,
    )
    assert lost.created_at is None


# --- rotating


async def test_a_rotation_wraps_everything_anew_and_seals_nothing(host: Host) -> None:
    sealed = await host.select("SELECT payload FROM doc ORDER BY run_uid")
    version = await host.database.read(read_version)
    before = await host.select("SELECT updated_at FROM run")

    done = await host.rotate()

    assert (True, 7, TEXTS, ()) == (done.fresh, done.runs, done.records, done.left)
    assert {done.active} == await host.under()
    assert done.active == host.ring.active == (await start_host(host.database, host.path)).ring.active
    await whole(host)
    assert sealed == await host.select("SELECT payload FROM doc ORDER BY run_uid")
    assert version == await host.database.read(read_version)
    assert before == await host.select("SELECT updated_at FROM run")
    assert [
        ("key_added", done.active),
        ("key_activated", done.active),
        ("keys_rotated", f"{done.active}: runs 7, records {TEXTS}, left 0"),
    ] == await host.audited()


async def test_a_key_that_was_added_is_the_one_to_rotate_to(host: Host) -> None:
    added = await host.add_key()

    assert added == (await host.rotate()).active
    assert 2 == len(host.ring.keys)
    assert 3 == len(await rings_after(host))


async def rings_after(host: Host) -> list[str]:
    """Rotate once more, which adds a key, since nothing is left to do and none is new."""
    assert (await host.rotate()).active == host.ring.newest
    return list(host.ring.keys)


async def test_new_runs_are_wrapped_under_the_new_key_at_once(host: Host) -> None:
    await host.rotate()
    other = await start_host(host.database, host.path)

    await other.add_runs(1)

    assert {host.ring.active} == await host.under()


async def test_rows_are_wrapped_in_batches_with_progress(host: Host) -> None:
    await host.add_runs(1_200)
    told: list[tuple[int, int]] = []

    await host.keys.rotate(add=True, actor="ada", via="test", progress=lambda done, of: told.append((done, of)))

    assert [(500, 1_211), (1_000, 1_211), (1_207, 1_211)] == told[:3]
    assert (1_211, 1_211) == told[-1]
    assert {host.ring.active} == await host.under()


class Stopped(Exception):
    """Stands for a process that ends here."""


async def test_an_interrupted_rotation_is_finished_by_the_next(host: Host) -> None:
    await host.add_runs(600)

    def stop(done: int, of: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        await host.keys.rotate(add=True, actor="ada", via="test", progress=stop)
    assert 2 == len(await host.under())
    await whole(host)

    done = await host.rotate()

    assert (False, 107, TEXTS, ()) == (done.fresh, done.runs, done.records, done.left)
    assert {done.active} == await host.under()
    assert 2 == len(host.ring.keys)
    await whole(host)


async def test_what_another_host_wrapped_meanwhile_is_found(host: Host, tmp_path: Path) -> None:
    """It has the newer key and goes on under the older one, until its file is copied again."""
    await host.add_key()
    other = await start_host(host.database, copied(host, tmp_path / "other.json"))
    await host.rotate()
    await other.add_runs(3)
    host.made |= other.made

    done = await host.rotate(add=False)

    assert (False, 3, 0, ()) == (done.fresh, done.runs, done.records, done.left)
    await whole(host)
    again = await host.rotate(add=False)
    assert (done.active, False, 0) == (again.active, again.fresh, again.runs)
    assert 2 == len(host.ring.keys)


async def test_rotations_at_once_do_no_harm(host: Host, tmp_path: Path) -> None:
    """Of one file and of two, with a key to rotate to and without."""
    await host.add_runs(1_000)
    await host.add_key()
    other = await start_host(host.database, copied(host, tmp_path / "other.json"))

    done = await asyncio.gather(host.rotate(), other.rotate(), host.rotate())

    assert 1_007 == sum(one.runs for one in done)
    await whole(host)
    assert {host.ring.active} == await host.under()
    assert [()] == list({one.left for one in done})


# --- what is left


async def test_rows_under_a_key_that_is_not_here_are_left_and_told(host: Host) -> None:
    [lost] = await host.add_runs(1)
    await host.change([lost], key_id="k-lost")
    before = await host.select(f"SELECT wrapped_key FROM run WHERE uuid = '{lost}'")

    done = await host.rotate()

    assert [("k-lost", False, 1, 0)] == [(key.id, key.here, key.runs, key.records) for key in done.left]
    assert (7, TEXTS) == (done.runs, done.records)
    assert before == await host.select(f"SELECT wrapped_key FROM run WHERE uuid = '{lost}'")


async def test_a_damaged_key_is_left_and_the_rest_goes_on(host: Host) -> None:
    old = host.ring.active
    [damaged] = await host.add_runs(1)
    await host.change([damaged], wrapped_key=b"x" * 40)

    done = await host.rotate()

    assert [(old, 1)] == [(key.id, key.runs) for key in done.left]
    assert (7, TEXTS) == (done.runs, done.records)
    assert (await host.rotate()).active != done.active  # it keeps nobody from rotating again


async def test_a_purge_between_finding_and_wrapping_is_left_alone(host: Host) -> None:
    purged, *rest = await host.add_runs(2)
    await host.end([purged, *rest])
    ring = host.ring.grown()
    ring = ring.activated(ring.newest)
    found = await host.database.read(find_under, run, [host.ring.active], 0, 500)
    uids = [row["uid"] for row in await host.select(f"SELECT uid FROM run WHERE uuid = '{purged}'")]

    await host.database.transact(purge_runs, uids, audit_row())

    assert len(found) - 1 == await host.database.transact(rewrap_rows, run, ring, found)
    assert [None] == [
        row["wrapped_key"] for row in await host.select(f"SELECT wrapped_key FROM run WHERE uuid = '{purged}'")
    ]
    assert 0 == await host.database.transact(rewrap_rows, run, ring, found)


class Held:
    """Holds up the first commit of a database that another thread works with."""

    def __init__(self) -> None:
        self._written, self._go_on = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == "before_commit":
            self._written.set()
            self._go_on.wait(20)

    async def at_its_commit(self) -> None:
        await eventually(self._written.is_set, "it has written")

    async def let_go_when_waited_for(self, host: Host) -> None:
        """On SQLite nobody can see who waits; there nobody else writes before the commit."""
        if host.database.dialect == "postgresql":
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            await eventually(lambda: host.select(waiting), "somebody waits for it")
        self._go_on.set()


async def test_a_purge_that_commits_meanwhile_is_not_taken_back(url: str, path: Path) -> None:
    """It holds the run's row while the rotation wants it; the key that it destroys must not come back."""
    held = Held()

    async def destroy(uids: list[int]) -> None:
        database = Database.open(url, fault=held)
        await database.transact(purge_runs, uids, audit_row())
        await database.close()

    async def wrap(host: Host) -> None:
        uuids = await host.add_runs(2)
        await host.end(uuids)
        uids = [row["uid"] for row in await host.select("SELECT uid FROM run ORDER BY uid")]
        ring = host.ring.grown()
        ring = ring.activated(ring.newest)
        purging = asyncio.create_task(asyncio.to_thread(asyncio.run, destroy(uids[:1])))
        await held.at_its_commit()
        wrapping = asyncio.create_task(host.database.transact(rewrap_rows, run, ring, uids))
        await held.let_go_when_waited_for(host)
        await purging

        assert 1 == await wrapping
        rows = await host.select("SELECT wrapped_key FROM run ORDER BY uid")
        assert [True, False] == [row["wrapped_key"] is None for row in rows]

    await with_host(url, path, wrap, create=True)


# --- several hosts


async def test_a_host_without_the_new_key_goes_on_with_what_it_can_open(host: Host, tmp_path: Path) -> None:
    other = await start_host(host.database, copied(host, tmp_path / "other.json"))
    done = await host.rotate()

    assert done.active not in other.sealer.key_ids
    with pytest.raises(KeyRingError, match=f"lacks {done.active}"):
        await start_host(host.database, other.path)

    copied(host, other.path)

    assert (await start_host(host.database, other.path)).ring == host.ring
    assert host.made == await other.opened()  # the running one has noticed


async def rotated_elsewhere(world: World, folder: Path) -> Path:
    """Rotate on another host, whose file the world's own host does not have yet; gives that file."""
    newer = folder / "newer.json"
    shutil.copy(world.folder / "keys.json", newer)
    await SqlKeys(world.database, newer, grace_s=0).rotate(add=True, actor="ada", via="test", progress=nothing)
    return newer


async def test_a_host_without_the_active_key_drives_nothing_and_says_so(tmp_path: Path) -> None:
    """It could open its older runs, and not the texts that they are judged by: it would spoil them."""
    async with open_world(tmp_path) as world:
        newer = await rotated_elsewhere(world, tmp_path)

        uuid = (await world.runtime.enqueue(world.ask())).uuid
        await eventually(lambda: ("claim.failed", {"problem": "key_behind"}) in world.logs, "it says so")
        row = await world.row(uuid)
        assert (RunStatus.QUEUED, 0, 0) == (row.status, row.attempts, row.seq)

        newer.replace(world.folder / "keys.json")

        assert RunStatus.COMPLETED is (await world.rest(uuid)).status
        assert 1 == (await world.row(uuid)).segment


async def test_a_run_that_is_started_where_the_active_key_is_missing_is_left_to_others(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        newer = await rotated_elsewhere(world, tmp_path)

        with pytest.raises(StoreError, match="key_behind"):
            await world.run()

        [row] = await world.store.runs(RunFilter())
        assert (RunStatus.QUEUED, 0, 0) == (row.status, row.attempts, row.seq)
        newer.replace(world.folder / "keys.json")
        world.database.shift_clock(31)
        world.host.wake_oldest()
        assert "done" == (await world.rest(row.uuid)).answer


async def test_files_do_not_grow_apart(host: Host, tmp_path: Path) -> None:
    """Who lacks a newer key that the database knows adds none, unless that key is lost."""
    other = await start_host(host.database, copied(host, tmp_path / "other.json"))
    added = await host.add_key()
    before = other.path.read_bytes()

    for refused in (other.add_key, other.rotate):
        with pytest.raises(KeepingError, match=f"{added}, which is newer .* copy the newer file") as error:
            await refused()
        assert "keys" == error.value.code
    assert before == other.path.read_bytes()

    forced = await other.add_key(force=True)

    assert forced == (await other.rotate()).active


async def test_of_two_hosts_that_add_at_once_one_is_refused(url: str, path: Path) -> None:
    """The second one has looked before the first one's key was there; its file stays as it was."""
    held = Held()

    async def add_elsewhere(other: Path) -> None:
        database = Database.open(url, fault=held)
        await SqlKeys(database, other).add(force=False, actor="ada", via="test")
        await database.close()

    async def add(host: Host) -> None:
        other = copied(host, path.with_name("other.json"))
        before = host.path.read_bytes()
        first = asyncio.create_task(asyncio.to_thread(asyncio.run, add_elsewhere(other)))
        await held.at_its_commit()
        second = asyncio.create_task(host.add_key())
        await held.let_go_when_waited_for(host)
        await first

        with pytest.raises(KeepingError, match=f"knows {KeyRing.load(other).newest}"):
            await second
        assert before == host.path.read_bytes()

    await with_host(url, path, add, create=True)


async def test_an_old_key_that_was_taken_out_is_not_missed(host: Host) -> None:
    await host.rotate()
    ring = host.ring
    KeyRing(keys={ring.active: ring.keys[ring.active]}, active=ring.active, subkey=ring.subkey).save(host.path)

    later = await start_host(host.database, host.path)
    later.made = host.made

    await whole(later)
    await later.rotate()
    await whole(later)


# --- crashes between the file and the database


class Crashing:
    """Lets a connection die in the n-th commit, before or after it."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    @property
    def came(self) -> bool:
        return self._left <= 0

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                raise ConnectionError


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database_url(request.param, tmp_path) as url:
        yield url


async def with_host(url: str, path: Path, work: Callable[[Host], object], *, create: bool = False) -> Host:
    database = Database.open(url)
    try:
        if create and url.startswith("sqlite"):
            await database.create_all()
        host = await start_host(database, path)
        result = work(host)
        if asyncio.iscoroutine(result):
            await result
        return host
    finally:
        await database.close()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_crash_in_any_commit_is_survived(url: str, path: Path, point: str) -> None:
    """The file is written and the database is not, or both are: it starts, everything opens, and the next ends it."""
    host = await with_host(url, path, lambda host: host.fill(3), create=True)
    made = host.made

    for number in count(1):
        fault = Crashing(point, number)
        database = Database.open(url, fault=fault)
        crashed = await start_host(database, path)
        try:
            await crashed.rotate()
        except StoreError as error:
            assert "commit_unknown" == error.problem
        finally:
            await database.close()
        if not fault.came:
            break

        async def finish(host: Host) -> None:
            host.made = made
            assert host.ring.keys.keys() >= await host.under()
            await whole(host)
            done = await host.rotate()
            assert {done.active} == await host.under()
            await whole(host)

        await with_host(url, path, finish)

    assert number >= 5


async def test_a_file_that_was_restored_follows_the_database(host: Host) -> None:
    """The reverse: the database says that the new key is active, and the file, from a copy, does not yet."""
    await host.add_key()
    copy = host.path.read_bytes()
    done = await host.rotate()
    host.path.write_bytes(copy)
    assert done.active != host.ring.active

    started = await start_host(host.database, host.path)
    await started.add_runs(2)
    host.made |= started.made
    assert {done.active} == await started.under()
    again = await started.rotate()

    assert again.active == host.ring.active == host.ring.newest
    await whole(host)


async def test_the_ring_is_in_the_database_as_in_the_file(host: Host) -> None:
    await host.keys.rotate(add=True, actor="ada", via="test", progress=nothing)

    known = await host.database.read(lambda c: c.execute(sa.select(key_ring.c.id).where(key_ring.c.active)).all())

    assert [(host.ring.active,)] == [tuple(row) for row in known]
