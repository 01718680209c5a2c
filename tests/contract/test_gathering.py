"""What arrives together is done together, and gives each asker exactly what he would have got alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from codec.vocabulary import RunStatus
from tests.support.stores import (
    DATABASES,
    OpenedStore,
    append,
    audit_row,
    claim,
    created,
    entry,
    inbox_row,
    new_run,
    opened,
    suspended,
)
from worker.adapters.sql.create import create_run, create_runs
from worker.adapters.sql.engine import Database
from worker.adapters.sql.gathering import Gathering
from worker.adapters.sql.postgres import PostgresBackend
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.sql.writes import insert_audit
from worker.ports.records import Document, Due, Stored, StoredAnswer
from worker.ports.runs import StoreError

REQUEST = Document(kind="request", version=1, seq=0, payload=b"sealed request")


@pytest.fixture(params=DATABASES)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenedStore]:
    async with opened(request.param, tmp_path) as stores:
        yield stores


@pytest.fixture
def store(both: OpenedStore) -> SqlRunStore:
    return both.store


def state_at(seq: int, payload: bytes = b"sealed state") -> Document:
    return Document(kind="state", version=1, seq=seq, payload=payload)


# --- What a run stands on


async def test_a_new_run_stands_on_its_request(store: SqlRunStore) -> None:
    row = await created(store, documents=(REQUEST,))

    assert Stored(documents=(REQUEST,), entries=(), answer=None) == await store.stored(row.uid)


async def test_a_run_that_is_not_there_stands_on_nothing(store: SqlRunStore) -> None:
    assert Stored(documents=(), entries=(), answer=None) == await store.stored(4711)


async def test_a_begun_run_stands_on_its_newest_snapshot_and_what_came_after(store: SqlRunStore) -> None:
    row = await created(store, documents=(REQUEST,))
    [held] = await claim(store, uuids=[row.uuid])
    await store.commit(append(held, 1, documents=(state_at(1, b"older"),)))
    await store.commit(append(held, 2, entries=(entry(2), entry(3)), documents=(state_at(3),)))
    await store.commit(append(held, 4, entries=(entry(4), entry(5))))

    stored = await store.stored(row.uid)

    assert (state_at(3),) == stored.documents  # the request is not read any more
    assert [4, 5] == [e.seq for e in stored.entries]
    assert {"t1"} == {e.token for e in stored.entries}


async def test_a_continued_run_stands_on_its_base_until_it_has_a_state(store: SqlRunStore) -> None:
    base = Document(kind="base", version=1, seq=0, payload=b"sealed base")
    row = await created(store, documents=(base,))
    [held] = await claim(store, uuids=[row.uuid])
    await store.commit(append(held, 1))

    stored = await store.stored(row.uid)

    assert (base,) == stored.documents
    assert [1] == [e.seq for e in stored.entries]


async def test_only_the_unconsumed_answer_to_the_open_question_is_read(store: SqlRunStore) -> None:
    row = await suspended(store)
    assert (await store.stored(row.uid)).answer is None
    await store.answer(row, inbox_row(), audit_row(), replace=False)

    stored = await store.stored(row.uid)
    assert stored.answer == inbox_row()

    [held] = await claim(store, uuids=[row.uuid])
    await store.commit(append(held, 2, folded="q1", folded_seq=2, question="q1", due=Due.LEASE))
    assert (await store.stored(row.uid)).answer is None


async def test_each_asker_gets_his_own_run(store: SqlRunStore) -> None:
    rows = [
        await created(store, documents=(replace(REQUEST, payload=f"sealed {number}".encode()),)) for number in range(40)
    ]

    found = await asyncio.gather(*(store.stored(row.uid) for row in reversed(rows)))

    assert [f"sealed {number}".encode() for number in reversed(range(40))] == [s.documents[0].payload for s in found]


async def test_who_ask_for_the_same_run_at_once_get_the_same(store: SqlRunStore) -> None:
    row = await created(store, documents=(REQUEST,))
    [held] = await claim(store, uuids=[row.uuid])
    await store.commit(append(held, 1, entries=(entry(1), entry(2))))

    first, second = await asyncio.gather(store.stored(row.uid), store.stored(row.uid))

    assert first == second
    assert [1, 2] == [e.seq for e in first.entries]


# --- Starts


async def test_starts_that_arrive_together_are_all_there_with_their_documents(store: SqlRunStore) -> None:
    new = [new_run(documents=(REQUEST,), idempotency=f"k{number % 40}") for number in range(60)]

    found = await asyncio.gather(*(store.create(one) for one in new))

    assert [True] * 40 + [False] * 20 == [is_new for _, is_new in found]
    assert [one.uuid for one in new[:40]] == [row.uuid for row, _ in found[:40]]
    assert [one.uuid for one in new[:20]] == [row.uuid for row, _ in found[40:]]  # the earlier ones of their keys
    for row, _ in found[:40]:
        assert (REQUEST,) == (await store.stored(row.uid)).documents


async def test_a_start_that_cannot_be_stored_fails_alone(store: SqlRunStore) -> None:
    bad = new_run(documents=(REQUEST, REQUEST))
    good = [new_run(documents=(REQUEST,)) for _ in range(5)]

    found = await asyncio.gather(*(store.create(one) for one in (*good[:2], bad, *good[2:])), return_exceptions=True)

    assert isinstance(found[2], StoreError)
    assert await store.run(bad.uuid) is None
    assert 5 == sum(not isinstance(one, BaseException) for one in found)
    for one in good:
        assert await store.run(one.uuid) is not None


# --- Answers


async def test_of_many_answers_at_once_one_counts_and_the_others_are_told_whose(store: SqlRunStore) -> None:
    rows = [await suspended(store) for _ in range(3)]
    deciders = [f"decider-{number}" for number in range(20)]

    said = await asyncio.gather(
        *(
            store.answer(row, inbox_row(decided_by=name), audit_row("given", actor=name, run=row.uuid), replace=False)
            for name in deciders
            for row in rows
        )
    )

    for row, outcomes in ((row, said[index::3]) for index, row in enumerate(rows)):
        [winner] = [name for name, one in zip(deciders, outcomes, strict=True) if one.problem is None]
        assert {StoredAnswer(problem="answered", decided_by=winner)} == {o for o in outcomes if o.problem is not None}
        stored = await store.inbox(row.uid, "q1")
        assert stored is not None
        assert winner == stored.decided_by
        assert [winner] == [audited.actor for audited in await store.audit(row.uuid, None)]
        again = await store.run(row.uuid)
        assert again is not None
        assert (winner, RunStatus.WAITING_FOR_APPROVAL, "answer") == (again.answered_by, again.status, again.cause)


async def test_each_answer_of_a_batch_stands_under_its_own_guard(both: OpenedStore) -> None:
    store = both.store
    open_one, expiring, running = await suspended(store), await suspended(store, expires_in_s=10), await created(store)
    [held] = await claim(store, uuids=[running.uuid])
    both.database.shift_clock(11)

    said = await asyncio.gather(
        store.answer(open_one, inbox_row("another"), audit_row(), replace=False),
        store.answer(expiring, inbox_row(), audit_row(), replace=False),
        store.answer(held.row, inbox_row(), audit_row(), replace=False),
        store.answer(open_one, inbox_row(), audit_row(), replace=False),
    )

    assert ["stale", "expired", "not_waiting", None] == [one.problem for one in said]
    assert 1 == len(await store.audit(None, None))


async def test_a_denial_replaces_the_unspent_answer_of_a_blocked_run_and_nothing_else(store: SqlRunStore) -> None:
    row = await suspended(store)
    await store.answer(row, inbox_row(decided_by="ada"), audit_row(), replace=False)
    refused = await store.answer(row, inbox_row(decided_by="grace"), audit_row(), replace=True)
    [held] = await claim(store, uuids=[row.uuid])
    blocked = append(
        held,
        2,
        status=RunStatus.WAITING_FOR_APPROVAL,
        due=Due.EXPIRY,
        release=True,
        question="q1",
        question_kind=row.question_kind,
        question_number=1,
        keep_expiry=True,
        blocked="{}",
    )
    await store.commit(blocked)

    approved = await store.answer(row, inbox_row(decided_by="alan"), audit_row(), replace=False)
    denied = await store.answer(row, inbox_row(decided_by="grace", payload=b"a denial"), audit_row(), replace=True)

    assert ("answered", "answered", None) == (refused.problem, approved.problem, denied.problem)
    assert inbox_row(decided_by="grace", payload=b"a denial") == await store.inbox(row.uid, "q1")


@pytest.mark.postgres
async def test_a_key_that_somebody_keeps_is_waited_for_by_its_own_start_only(tmp_path: Path) -> None:
    """A caller's transaction may stay open for minutes; others start and answer meanwhile."""
    async with opened("postgresql", tmp_path) as both, opened_again(both) as caller:
        await caller.run_sync(create_run, new_run(idempotency="k", body="b"))

        said = await asyncio.gather(
            both.store.create(new_run(idempotency="k", body="b")),
            *(both.store.create(new_run()) for _ in range(3)),
            return_exceptions=True,
        )

        assert isinstance(said[0], StoreError) and "busy" == said[0].problem
        assert [True] * 3 == [not isinstance(one, BaseException) and one[1] for one in said[1:]]
        await caller.rollback()
        assert (await both.store.create(new_run(idempotency="k", body="b")))[1]


@asynccontextmanager
async def opened_again(both: OpenedStore) -> AsyncIterator[AsyncConnection]:
    """Give a connection of somebody else's to the same PostgreSQL database, in a transaction."""
    backend = both.database._backend
    assert isinstance(backend, PostgresBackend)
    async with backend._engine.connect() as connection:
        yield connection


async def test_a_database_that_is_busy_is_waited_for_once(tmp_path: Path) -> None:
    """Not once for each of those who wait together: a hundred would wait for a hundred times as long."""
    async with opened("sqlite", tmp_path) as other:
        hasty = Database.open(f"sqlite:///{tmp_path / 'runs.db'}", wait_s=0.2)
        asked = 0

        async def counted(work: Callable[[sa.Connection], Any]) -> Any:
            nonlocal asked
            asked += 1
            return await hasty.transact(work)

        gathering, held, let = Gathering(counted), threading.Event(), threading.Event()

        def hold(_: sa.Connection) -> None:
            held.set()
            let.wait(20)

        holding = asyncio.create_task(other.database.transact(hold))
        await asyncio.to_thread(held.wait, 20)

        said = await asyncio.gather(
            *(gathering.one_of(create_runs, new_run()) for _ in range(5)), return_exceptions=True
        )
        let.set()
        await holding
        await hasty.close()

        assert ["busy"] * 5 == [one.problem for one in said if isinstance(one, StoreError)]
        assert 1 == asked


@pytest.mark.parametrize("which", ["writes", "steps"])
async def test_whoever_stops_waiting_for_a_close_leaves_the_others_theirs(both: OpenedStore, which: str) -> None:
    await created(both.store)
    [held] = await claim(both.store)
    work = both.store.create(new_run()) if which == "writes" else both.store.commit(append(held, 1))
    asked = asyncio.create_task(work)
    await asyncio.sleep(0)
    closing = asyncio.create_task(both.store.stop())
    await asyncio.sleep(0)

    closing.cancel()

    await asyncio.wait([asked, closing], timeout=20)
    assert asked.done() and asked.exception() is None


async def test_units_that_share_a_transaction_are_done_singly_when_one_of_them_ends_it(tmp_path: Path) -> None:
    """As SQLite does when the disk is full: everything is rolled back, savepoints included."""

    def record(connection: sa.Connection, decision: str) -> None:
        insert_audit(connection, [audit_row(decision)], 0.0)

    def ends(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ROLLBACK")
        raise StoreError("full")

    async with opened("sqlite", tmp_path) as both:
        said = await asyncio.gather(
            both.database.transact(record, "first"),
            both.database.transact(record, "second"),
            both.database.transact(ends),
            both.database.transact(record, "third"),
            return_exceptions=True,
        )

        assert [None, None, StoreError, None] == [None if one is None else type(one) for one in said]
        assert {"first", "second", "third"} == {row.decision for row in await both.store.audit(None, None)}
