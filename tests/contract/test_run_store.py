"""The contract of `RunStore`: one suite for every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from codec.vocabulary import ExposureState, Origin, QuestionKind, RunStatus, TerminationReason
from tests.support.stores import (
    DATABASES,
    LEASE_S,
    OpenedStore,
    append,
    audit_row,
    claim,
    created,
    entry,
    exposure,
    inbox_row,
    new_run,
    opened,
    suspended,
)
from worker.adapters.sql.catalogue_tables import catalogue_version
from worker.adapters.sql.commit import commit_steps
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.sql.tables import exposure as exposure_table
from worker.ports.records import Append, CommitStatus, Document, Due, RunFilter, RunRow, SourceRow, StoredAnswer
from worker.ports.runs import RunStore, StoreError

COMMITTED, LOST, CANCELLED = CommitStatus.COMMITTED, CommitStatus.LOST, CommitStatus.CANCELLED


@pytest.fixture(params=DATABASES)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenedStore]:
    async with opened(request.param, tmp_path) as stores:
        yield stores


@pytest.fixture
def store(both: OpenedStore) -> SqlRunStore:
    return both.store


async def read(store: SqlRunStore, row: RunRow) -> RunRow:
    found = await store.run(row.uuid)
    assert found is not None
    return found


async def commit(store: SqlRunStore, step: Append) -> CommitStatus:
    return (await store.commit(step)).status


async def move_policy(both: OpenedStore, version: int) -> None:
    def move(connection: sa.Connection) -> None:
        connection.execute(sa.update(catalogue_version).values(version=version))

    await both.database.transact(move)


async def sequences(store: SqlRunStore, row: RunRow) -> list[int]:
    return [found.seq for found in await store.entries(row.uid)]


def test_it_is_a_run_store(store: SqlRunStore) -> None:
    port: RunStore = store

    assert port is store


# --- create


async def test_a_created_run_is_queued_and_due(store: SqlRunStore) -> None:
    document = Document(kind="request", version=1, seq=0, payload=b"sealed request")
    source = SourceRow(kind="snippet", uid=7, name="tone", origin="forced", seen=None, text_hash="ab")

    row, new = await store.create(new_run(documents=(document,), sources=(source,)))

    assert new
    assert (RunStatus.QUEUED, 0, 0, 0, None) == (row.status, row.seq, row.segment, row.attempts, row.token)
    assert row.due_at == row.created_at
    assert abs(await store.now() - row.created_at) < 5
    assert row == await read(store, row)
    assert document == await store.document(row.uid, "request")
    assert [source] == await store.sources(row.uid)


async def test_a_synchronous_run_is_born_running(store: SqlRunStore) -> None:
    row = await created(store, claim_token="t", claim_holder="cli", lease_s=20.0)

    assert (RunStatus.RUNNING, "t", "cli", 1, 1) == (row.status, row.token, row.holder, row.segment, row.attempts)
    assert row.due_at == row.created_at + 20
    assert await commit(store, append(row, 1)) == COMMITTED


async def test_the_same_key_of_the_same_owner_gives_the_first_run(store: SqlRunStore) -> None:
    first, _ = await store.create(new_run(idempotency="key", body="b1"))

    again, new = await store.create(new_run(idempotency="key", body="b2"))

    assert (False, first) == (new, again)
    assert again.body == "b1"


async def test_the_key_of_another_owner_is_another_key(store: SqlRunStore) -> None:
    await store.create(new_run(idempotency="key"))

    _, new = await store.create(new_run(idempotency="key", owner="grace"))

    assert new


async def test_of_twenty_creators_with_one_key_one_creates(store: SqlRunStore) -> None:
    results = await asyncio.gather(*(store.create(new_run(idempotency="key")) for _ in range(20)))

    assert 1 == sum(new for _, new in results)
    assert 1 == len({row.uid for row, _ in results})


async def test_a_uuid_that_exists_is_refused_without_a_value(store: SqlRunStore) -> None:
    row = await created(store)

    with pytest.raises(StoreError) as refused:
        await store.create(new_run(uuid=row.uuid))

    assert "integrity" == str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


@pytest.mark.parametrize("bad", [2**70, "\ud800"])
async def test_what_the_driver_cannot_encode_is_refused_without_a_value(store: SqlRunStore, bad: int | str) -> None:
    changes = {"configuration_uid": bad} if isinstance(bad, int) else {"configuration": bad}

    with pytest.raises(StoreError) as refused:
        await store.create(new_run(**changes))

    assert "data" == str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


# --- commit


async def test_a_commit_moves_the_row_and_appends(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)
    step = append(held, 1, rounds=2, input_tokens=30, output_tokens=4, high_water="source_code", cause="x")

    assert await commit(store, step) == COMMITTED

    row = await read(store, row)
    assert (1, b"head 1", 2, 30, 4) == (row.seq, row.head, row.rounds, row.input_tokens, row.output_tokens)
    assert ("source_code", "x", "t1", "worker-1") == (row.high_water, row.cause, row.token, row.holder)
    [found] = await store.entries(row.uid)
    assert entry(1, at=found.at, token="t1") == found
    assert row.updated_at == found.at
    assert row.due_at == pytest.approx(found.at + LEASE_S)


async def test_a_commit_of_several_entries_is_one_step(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    assert await commit(store, append(held, 1, entries=(entry(1), entry(2), entry(3)))) == COMMITTED
    assert await commit(store, append(held, 4)) == COMMITTED

    assert [1, 2, 3, 4] == await sequences(store, row)
    assert [3, 4] == [found.seq for found in await store.entries(row.uid, after=2)]


async def test_entries_with_a_gap_are_refused_at_once(store: SqlRunStore) -> None:
    await created(store)
    [held] = await claim(store)

    with pytest.raises(StoreError, match="sequence"):
        await store.commit(append(held, 1, entries=(entry(1), entry(3))))


async def test_another_token_is_lost(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    assert await commit(store, append(held, 1, token="other")) == LOST
    assert [] == await sequences(store, row)


@pytest.mark.parametrize("first", [1, 3])
async def test_another_sequence_is_lost(store: SqlRunStore, first: int) -> None:
    row = await created(store)
    [held] = await claim(store)
    await store.commit(append(held, 1))

    assert await commit(store, append(held, first)) == LOST
    assert [1] == await sequences(store, row)


async def test_an_unknown_run_is_lost(store: SqlRunStore) -> None:
    await created(store)
    [held] = await claim(store)

    assert await commit(store, append(held, 1, run_uid=999)) == LOST


async def test_a_run_that_was_claimed_anew_is_lost(both: OpenedStore) -> None:
    store = both.store
    await created(store)
    [old] = await claim(store)
    both.database.shift_clock(LEASE_S + 1)
    [new] = await claim(store, token="t2")

    assert await commit(store, append(old, 1)) == LOST
    assert await commit(store, append(new, 1)) == COMMITTED


async def test_a_moved_policy_writes_nothing(both: OpenedStore) -> None:
    store = both.store
    row = await created(store)
    [held] = await claim(store)
    await move_policy(both, 5)

    moved = await store.commit(append(held, 1))

    assert (CommitStatus.POLICY_MOVED, 5) == (moved.status, moved.policy)
    assert [] == await sequences(store, row)
    assert await commit(store, append(held, 1, policy=5)) == COMMITTED
    assert await commit(store, append(held, 2, policy=None)) == COMMITTED


async def test_a_cancelled_run_takes_a_closing_step_only(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)
    await store.commit(append(held, 1))
    assert await store.cancel_running(row, audit_row("cancelled"))
    cancelled = await read(store, row)

    assert await commit(store, append(held, 2)) == CANCELLED
    assert [1] == await sequences(store, row)

    closing = append(held, 2, entries=(entry(2), entry(3)), closing=True, status=RunStatus.FAILED, due=Due.NOW)
    assert await commit(store, closing) == COMMITTED

    closed = await read(store, row)
    assert (RunStatus.CANCELLED, TerminationReason.CANCELLED, 3) == (closed.status, closed.reason, closed.seq)
    assert (None, None, None) == (closed.token, closed.holder, closed.due_at)
    assert closed.finished_at == cancelled.finished_at
    assert await commit(store, append(held, 4, closing=True)) == LOST


async def test_a_final_step_ends_the_run(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)
    reason = TerminationReason.MAX_ITERATIONS

    await store.commit(append(held, 1, status=RunStatus.COMPLETED, reason=reason, due=Due.NEVER, release=True))

    row = await read(store, row)
    assert (RunStatus.COMPLETED, reason, None, None) == (row.status, row.reason, row.token, row.due_at)
    assert row.finished_at == row.updated_at


async def test_a_suspending_step_asks_and_expires(store: SqlRunStore) -> None:
    row = await suspended(store, expires_in_s=60.0)

    assert (RunStatus.WAITING_FOR_APPROVAL, "q1", 1) == (row.status, row.question, row.question_number)
    assert (QuestionKind.APPROVAL, None, None) == (row.question_kind, row.token, row.holder)
    assert row.expires_at == pytest.approx(row.updated_at + 60)
    assert row.due_at == row.expires_at


async def test_a_question_without_an_end_is_never_due(store: SqlRunStore) -> None:
    row = await suspended(store)

    assert (None, None) == (row.due_at, row.expires_at)


async def test_the_same_question_keeps_its_expiry_and_answer(store: SqlRunStore) -> None:
    row = await suspended(store, expires_in_s=60.0)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")
    again = {"question": "q1", "question_kind": QuestionKind.APPROVAL, "question_number": 1, "keep_expiry": True}

    await store.commit(
        append(held, 2, status=RunStatus.WAITING_FOR_APPROVAL, due=Due.EXPIRY, release=True, blocked="{}", **again)
    )

    blocked = await read(store, row)
    assert (row.expires_at, row.expires_at) == (blocked.expires_at, blocked.due_at)
    assert ("grace", "{}", None) == (blocked.answered_by, blocked.blocked, blocked.cause)


async def test_another_question_forgets_expiry_and_answer(store: SqlRunStore) -> None:
    row = await suspended(store, expires_in_s=60.0)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")

    await store.commit(append(held, 2))

    row = await read(store, row)
    assert (None, None, None) == (row.question, row.expires_at, row.answered_by)


async def test_a_parked_run_is_due_after_its_delay(both: OpenedStore) -> None:
    store = both.store
    row = await created(store)
    [held] = await claim(store)
    parked = append(held, 1, status=RunStatus.QUEUED, due=Due.DELAY, delay_s=60.0, release=True, cause="retry")

    await store.commit(parked)

    assert [] == await claim(store)
    both.database.shift_clock(61)
    [claimed] = await claim(store)
    assert (row.uuid, RunStatus.QUEUED, "retry") == (claimed.row.uuid, claimed.was, claimed.row.cause)


async def test_a_drained_segment_was_no_attempt(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    await store.commit(append(held, 1, status=RunStatus.QUEUED, due=Due.NOW, release=True, counts=False))

    assert 0 == (await read(store, row)).attempts


async def test_a_newer_documents_version_keeps_older_builds_away(store: SqlRunStore) -> None:
    await created(store)
    [held] = await claim(store)

    await store.commit(append(held, 1, status=RunStatus.QUEUED, due=Due.NOW, release=True, doc_version=2))

    assert [] == await claim(store)
    assert 1 == len(await claim(store, doc_version=2))


async def test_everything_of_a_step_is_written_with_it(both: OpenedStore) -> None:
    store = both.store
    row = await suspended(store)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")
    old = Document(kind="state", version=1, seq=1, payload=b"old")
    new = Document(kind="state", version=1, seq=2, payload=b"new")
    source = SourceRow(kind="skill", uid=4, name="greet", origin="forced", seen="source_code", text_hash="cd")

    await store.commit(append(held, 2, documents=(old,), sources=(source,), folded="q1", folded_seq=2))
    await store.commit(append(held, 3, documents=(new,), audits=(audit_row("refused", run=row.uuid, zone="local"),)))

    assert new == await store.document(row.uid, "state")
    assert [source] == await store.sources(row.uid)
    answer = await store.inbox(row.uid, "q1")
    assert answer is not None
    assert 2 == answer.consumed_seq
    [refused] = await store.audit(row.uuid, None)
    assert ("refused", "local", "grace") == (refused.decision, refused.zone, refused.actor)
    assert refused.at > 0


async def test_nothing_of_a_lost_step_is_written(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)
    document = Document(kind="state", version=1, seq=1, payload=b"x")
    parts = {"documents": (document,), "audits": (audit_row(run=row.uuid),), "exposures": (exposure(),)}

    assert await commit(store, append(held, 1, token="other", **parts)) == LOST

    assert await store.document(row.uid, "state") is None
    assert [] == await store.audit(None, None)


async def exposed(both: OpenedStore) -> tuple[str, int]:
    columns = (exposure_table.c.state, exposure_table.c.sends)
    [found] = await both.database.read(lambda c: c.execute(sa.select(*columns)).all())
    return found.state, found.sends


@pytest.mark.parametrize(
    ("writes", "state", "sends"),
    [
        ([("possible", 1)], "possible", 1),
        ([("possible", 1), ("answered", 0)], "answered", 1),
        ([("possible", 1), ("failed", 0)], "failed", 1),
        ([("possible", 1), ("failed", 0), ("possible", 1)], "possible", 2),
        ([("possible", 1), ("possible", 1), ("failed", 0)], "possible", 2),  # a crash lost the first one
        ([("possible", 1), ("possible", 1), ("failed", 0), ("answered", 0)], "answered", 2),
        ([("possible", 1), ("failed", 0), ("possible", 1), ("failed", 0)], "failed", 2),
        ([("possible", 1), ("answered", 0), ("possible", 1)], "answered", 2),
        ([("possible", 1), ("answered", 0), ("possible", 1), ("failed", 0)], "answered", 2),
    ],
)
async def test_an_exposure_is_failed_when_every_send_failed(
    both: OpenedStore, writes: list[tuple[str, int]], state: str, sends: int
) -> None:
    await created(both.store)
    [held] = await claim(both.store)

    for seq, (word, count) in enumerate(writes, start=1):
        row = exposure(state=ExposureState(word), sends=count, failures=int(word == "failed"))
        assert await commit(both.store, append(held, seq, exposures=(row,))) == COMMITTED

    assert (state, sends) == await exposed(both)


async def test_exposures_differ_by_class_and_a_missing_class_is_one(both: OpenedStore) -> None:
    await created(both.store)
    [held] = await claim(both.store)

    rows = (exposure(), exposure(data_class=None), exposure(data_class=None, sends=2))
    await both.store.commit(append(held, 1, exposures=rows))

    columns = (exposure_table.c.data_class, exposure_table.c.sends)
    found = await both.database.read(lambda c: c.execute(sa.select(*columns).order_by(*columns)).all())
    assert [("", 3), ("source_code", 1)] == [tuple(row) for row in found]


# --- the group


async def test_a_poisoned_step_fails_alone(store: SqlRunStore) -> None:
    rows = [await created(store) for _ in range(9)]
    held = await claim(store, 9)
    waiting_without_a_question = {"status": RunStatus.WAITING_FOR_INPUT, "release": True}
    steps = [append(h, 1, **(waiting_without_a_question if i == 4 else {})) for i, h in enumerate(held)]

    results = await asyncio.gather(
        *(commit(store, step) for step in steps),
        store.renew([(held[0].row.uid, "t1")], LEASE_S),
        return_exceptions=True,
    )

    renewed = results.pop()
    assert isinstance(renewed, list)
    assert renewed[0].held
    [poisoned] = [result for result in results if isinstance(result, BaseException)]
    assert isinstance(poisoned, StoreError)
    assert poisoned is results[4]
    assert "integrity" == str(poisoned)
    assert [COMMITTED] * 8 == [result for result in results if not isinstance(result, BaseException)]
    assert [] == await sequences(store, held[4].row)
    assert [1] == await sequences(store, rows[0])


@pytest.mark.parametrize("changes", [{"cause": "a\0b"}, {"cause": "\ud800"}, {"input_tokens": 2**70}])
async def test_what_cannot_be_stored_fails_alone(store: SqlRunStore, changes: dict[str, object]) -> None:
    await created(store)
    await created(store)
    bad, good = await claim(store, 2)

    refused, fine = await asyncio.gather(
        commit(store, append(bad, 1, **changes)), commit(store, append(good, 1)), return_exceptions=True
    )

    assert isinstance(refused, StoreError)
    assert "data" == refused.problem
    assert refused.__cause__ is None
    assert refused.__context__ is None
    assert COMMITTED == fine


async def test_steps_of_one_run_commit_in_order(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    results = await asyncio.gather(*(commit(store, append(held, seq)) for seq in range(1, 21)))

    assert [COMMITTED] * 20 == results
    assert list(range(1, 21)) == await sequences(store, row)


async def test_many_runs_commit_together(store: SqlRunStore) -> None:
    for _ in range(40):
        await created(store)
    held = await claim(store, 600)
    big = b"x" * 300_000  # 40 of them are three batches

    results = await asyncio.gather(*(commit(store, append(h, 1, entries=(entry(1, payload=big),))) for h in held))

    assert [COMMITTED] * 40 == results


async def test_a_step_whose_waiter_is_gone_is_committed_all_the_same(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)
    waiter = asyncio.create_task(store.commit(append(held, 1)))
    await asyncio.sleep(0)

    waiter.cancel()
    await store.stop()

    assert [1] == await sequences(store, row)


async def test_a_fault_of_ours_reaches_the_waiter_and_leaves_the_writer_alive(store: SqlRunStore) -> None:
    await created(store)
    [held] = await claim(store)

    with pytest.raises(AttributeError):
        await store.commit(append(held, 1, status="running"))

    assert await commit(store, append(held, 1)) == COMMITTED


async def test_a_high_water_class_is_kept(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    await store.commit(append(held, 1, high_water="source_code"))
    await store.commit(append(held, 2))

    assert "source_code" == (await read(store, row)).high_water


class _Fault:
    """Breaks the connection at a named point, a number of times."""

    def __init__(self) -> None:
        self.point = ""
        self.times = 0
        self.broken = asyncio.Event()
        self.then: Callable[[], object] = lambda: None

    def __call__(self, point: str) -> None:
        if point == self.point and self.times > 0:
            self.times -= 1
            self.then()
            raise ConnectionError


@pytest.mark.parametrize("kind", DATABASES)
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("times", [1, 2])
async def test_an_interrupted_commit_happens_once(kind: str, point: str, times: int, tmp_path: Path) -> None:
    fault = _Fault()
    async with opened(kind, tmp_path, fault) as both:
        rows = [await created(both.store) for _ in range(3)]
        held = await claim(both.store, 3)
        steps = [append(h, 1, exposures=(exposure(),)) for h in held]
        lost = append(held[0], 1, run_uid=999)
        fault.point, fault.times = point, times

        results = await asyncio.gather(*(commit(both.store, step) for step in (*steps, lost)))

        assert 0 == fault.times
        assert [COMMITTED] * 3 + [LOST] == results
        assert [[1]] * 3 == [await sequences(both.store, row) for row in rows]


@pytest.mark.parametrize("kind", DATABASES)
async def test_an_interrupted_commit_is_acknowledged_though_the_policy_moved(kind: str, tmp_path: Path) -> None:
    fault = _Fault()
    async with opened(kind, tmp_path, fault) as both:
        await created(both.store)
        [held] = await claim(both.store)
        began = time.monotonic()
        fault.point, fault.times = "after_commit", 1
        loop = asyncio.get_running_loop()
        fault.then = lambda: loop.call_soon_threadsafe(fault.broken.set)

        waiter = asyncio.create_task(both.store.commit(append(held, 1)))
        await fault.broken.wait()
        broken = time.monotonic()
        await move_policy(both, 5)

        done = await waiter
        assert COMMITTED == done.status
        assert began <= done.at <= broken


async def test_another_ones_entry_is_not_taken_for_a_step_that_was_tried(both: OpenedStore) -> None:
    """Whoever closes a cancelled run writes at the next sequence, under the token of its dead segment."""
    store = both.store
    row = await created(store)
    [held] = await claim(store)
    await store.cancel_running(await read(store, row), audit_row(run=row.uuid))
    both.database.shift_clock(LEASE_S + 1)
    [dead] = await store.close_dead_cancelled(5)
    closing = replace(entry(1), kind="cancel_requested", payload=b"")
    assert await store.close(dead, closing, b"head", None)

    [found] = await both.database.transact(partial(commit_steps, tried_at=0.0), [append(held, 1)], LEASE_S)

    assert CommitStatus.LOST is found.status


async def test_a_commit_tells_when_it_knew_the_policy(store: SqlRunStore) -> None:
    await created(store)
    [held] = await claim(store)
    before = time.monotonic()

    done = await store.commit(append(held, 1))

    assert before <= done.at <= time.monotonic()


# --- claims


async def test_a_claim_holds_the_run(store: SqlRunStore) -> None:
    row = await created(store)

    [held] = await claim(store)

    assert ("t1", RunStatus.QUEUED, False) == (held.token, held.was, held.expired)
    assert held.row == await read(store, row)
    assert (RunStatus.RUNNING, "t1", "worker-1", 1, 1) == (
        held.row.status,
        held.row.token,
        held.row.holder,
        held.row.segment,
        held.row.attempts,
    )
    assert held.row.due_at == pytest.approx(held.row.updated_at + LEASE_S)
    assert [] == await claim(store, 5, token="t2")


async def test_the_oldest_due_run_comes_first(both: OpenedStore) -> None:
    rows = []
    for shift in (3, 1, 2):
        both.database.shift_clock(shift)
        rows.append(await created(both.store))
    both.database.shift_clock(4)

    first = await claim(both.store)
    rest = await claim(both.store, 5)

    assert [rows[1].uid, rows[2].uid, rows[0].uid] == [held.row.uid for held in first + rest]


async def test_only_named_runs_are_claimed(store: SqlRunStore) -> None:
    rows = [await created(store) for _ in range(3)]

    held = await claim(store, 5, uuids=[rows[2].uuid, "unknown"])

    assert [rows[2].uid] == [h.row.uid for h in held]
    assert [] == await claim(store, 5, uuids=[])
    assert [] == await claim(store, 0)


async def test_what_this_process_cannot_open_is_left(store: SqlRunStore) -> None:
    await created(store, key_id="k-2")
    await created(store, doc_version=2)
    mine = await created(store)

    assert [mine.uid] == [held.row.uid for held in await claim(store, 5)]
    assert [] == await claim(store, 5, key_ids=frozenset())
    assert 2 == len(await claim(store, 5, key_ids=frozenset({"k-1", "k-2"}), doc_version=2))


async def test_many_claimers_get_each_run_once(store: SqlRunStore) -> None:
    rows = [await created(store) for _ in range(60)]

    claims = await asyncio.gather(*(claim(store, 7, token=f"t{i}") for i in range(20)))

    uids = [held.row.uid for held in chain.from_iterable(claims)]
    assert sorted(row.uid for row in rows) == sorted(uids)


async def test_an_ended_lease_is_claimed_and_keeps_its_cause(both: OpenedStore) -> None:
    row = await created(both.store)
    await claim(both.store)
    both.database.shift_clock(LEASE_S - 1)
    assert [] == await claim(both.store, token="t2")
    both.database.shift_clock(LEASE_S + 1)

    [held] = await claim(both.store, token="t2")

    assert (row.uid, RunStatus.RUNNING, "start") == (held.row.uid, held.was, held.row.cause)
    assert (2, 2) == (held.row.segment, held.row.attempts)


@pytest.mark.parametrize("how", ["final", "cancelled", "waiting"])
async def test_what_nobody_may_drive_is_not_claimed(both: OpenedStore, how: str) -> None:
    store = both.store
    if how == "waiting":
        await suspended(store)
    else:
        row = await created(store)
        [held] = await claim(store)
        if how == "final":
            await store.commit(append(held, 1, status=RunStatus.FAILED, due=Due.NEVER, release=True))
        else:
            await store.cancel_running(row, audit_row())
    both.database.shift_clock(10 * LEASE_S)

    assert [] == await claim(store, token="t2")
    assert [] == await store.wakeable(5, 0.0)


async def test_an_unanswered_question_expires(both: OpenedStore) -> None:
    row = await suspended(both.store, expires_in_s=60.0)
    assert [] == await claim(both.store)
    both.database.shift_clock(61)

    [held] = await claim(both.store)

    assert (row.uid, RunStatus.WAITING_FOR_APPROVAL, True) == (held.row.uid, held.was, held.expired)
    assert ("q1", row.expires_at) == (held.row.question, held.row.expires_at)


async def test_an_answer_in_time_does_not_expire_with_a_late_claim(both: OpenedStore) -> None:
    row = await suspended(both.store, expires_in_s=60.0)
    await both.store.answer(row, inbox_row(), audit_row(), replace=False)
    both.database.shift_clock(61)

    [held] = await claim(both.store)
    assert ("answer", False) == (held.row.cause, held.expired)

    both.database.shift_clock(61 + LEASE_S)
    [held] = await claim(both.store, token="t2")
    assert (RunStatus.RUNNING, False) == (held.was, held.expired)


async def test_a_crashed_expiry_is_still_one(both: OpenedStore) -> None:
    await suspended(both.store, expires_in_s=60.0)
    both.database.shift_clock(61)
    await claim(both.store)
    both.database.shift_clock(62 + LEASE_S)

    [held] = await claim(both.store, token="t2")

    assert (RunStatus.RUNNING, True) == (held.was, held.expired)


async def test_a_claim_is_given_back_as_if_it_had_not_been(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    assert not await store.give_back(held.row, "other")
    assert await store.give_back(held.row, "t1")

    row = await read(store, row)
    assert (RunStatus.QUEUED, None, None, 0, "start") == (row.status, row.token, row.holder, row.attempts, row.cause)
    assert 0 == row.in_vain
    assert 1 == len(await claim(store, token="t2"))


async def test_a_claim_is_given_back_for_a_while(both: OpenedStore) -> None:
    await created(both.store)
    [held] = await claim(both.store)

    assert await both.store.give_back(held.row, "t1", 20.0)

    assert [] == await claim(both.store, token="t2")
    both.database.shift_clock(21.0)
    assert 1 == len(await claim(both.store, token="t2"))


async def test_a_claim_of_which_something_was_stored_is_not_given_back(store: SqlRunStore) -> None:
    """As by a commit whose answer was lost: its cause is spent."""
    row = await created(store)
    [held] = await claim(store)
    await commit(store, append(held, 1))

    assert not await store.give_back(held.row, "t1")

    assert ("t1", RunStatus.RUNNING) == ((await read(store, row)).token, (await read(store, row)).status)


async def test_a_claim_is_spared(store: SqlRunStore) -> None:
    row = await created(store)
    [held] = await claim(store)

    await store.spare(held.row.uid, "other")
    assert 1 == (await read(store, row)).in_vain
    for _ in range(2):
        await store.spare(held.row.uid, "t1")

    assert (1, 0) == ((await read(store, row)).attempts, (await read(store, row)).in_vain)


async def test_claims_are_counted_until_the_run_comes_further(both: OpenedStore) -> None:
    """So it is known of a run that it never comes to anything, whatever it dies of."""
    row = await created(both.store)
    for crash in range(2):
        both.database.shift_clock(crash * 2 * LEASE_S)
        await claim(both.store, token=f"t{crash}")
    both.database.shift_clock(4 * LEASE_S)
    [held] = await claim(both.store, token="t2")
    assert (3, 3) == (held.row.attempts, held.row.in_vain)

    await commit(both.store, append(held, 1, in_vain=2))
    assert (3, 2) == ((await read(both.store, row)).attempts, (await read(both.store, row)).in_vain)
    await commit(both.store, append(held, 2))

    assert (3, 0) == ((await read(both.store, row)).attempts, (await read(both.store, row)).in_vain)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (QuestionKind.APPROVAL, RunStatus.WAITING_FOR_APPROVAL),
        (QuestionKind.OUTCOME, RunStatus.WAITING_FOR_APPROVAL),
        (QuestionKind.INPUT, RunStatus.WAITING_FOR_INPUT),
    ],
)
async def test_a_given_back_answer_waits_again(store: SqlRunStore, kind: QuestionKind, status: RunStatus) -> None:
    row = await suspended(store, question_kind=kind, status=status)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")

    await store.give_back(held.row, "t2")

    [again] = await claim(store, token="t3")
    assert (status, "answer", "grace") == (again.was, again.row.cause, again.row.answered_by)


async def test_a_blocked_claim_waits_for_a_person(both: OpenedStore) -> None:
    store = both.store
    row = await suspended(store, expires_in_s=600.0)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")

    assert not await store.block(held.row.uid, "other", "{}")
    assert await store.block(held.row.uid, "t2", '{"reason":"corrupt"}')

    row = await read(store, row)
    assert (RunStatus.WAITING_FOR_APPROVAL, '{"reason":"corrupt"}', None) == (row.status, row.blocked, row.token)
    assert row.due_at == row.expires_at
    both.database.shift_clock(601)
    [held] = await claim(store, token="t3")
    assert held.expired


async def test_a_blocked_run_without_a_question_is_queued_and_never_due(both: OpenedStore) -> None:
    row = await created(both.store)
    [held] = await claim(both.store)

    await both.store.block(held.row.uid, "t1", "{}")

    row = await read(both.store, row)
    assert (RunStatus.QUEUED, None) == (row.status, row.due_at)


# --- heartbeats and wake-ups


async def test_a_heartbeat_extends_what_is_held(both: OpenedStore) -> None:
    store = both.store
    rows = [await created(store) for _ in range(3)]
    held = await claim(store, 3)
    await store.cancel_running(rows[1], audit_row())
    both.database.shift_clock(20)

    holds = [(rows[0].uid, "t1"), (rows[1].uid, "t1"), (rows[2].uid, "other"), (999, "t1")]
    renewals = await store.renew(holds, LEASE_S)

    assert [uid for uid, _ in holds] == [renewal.run_uid for renewal in renewals]
    assert [True, True, False, False] == [renewal.held for renewal in renewals]
    assert [False, True, False, False] == [renewal.cancelled for renewal in renewals]
    old, new = held[0].row.due_at, (await read(store, rows[0])).due_at
    assert old is not None
    assert new == pytest.approx(old + 20, abs=5)
    assert [] == await store.renew([], LEASE_S)


async def test_a_due_run_is_woken_once_per_interval(both: OpenedStore) -> None:
    store = both.store
    rows = [await created(store) for _ in range(3)]

    woken = await asyncio.gather(*(store.wakeable(10, 60.0) for _ in range(10)))

    assert sorted(row.uuid for row in rows) == sorted(chain.from_iterable(woken))
    both.database.shift_clock(61)
    assert 2 == len(await store.wakeable(2, 60.0))
    assert 1 == len(await store.wakeable(2, 60.0))


async def test_what_became_due_anew_is_woken_anew(store: SqlRunStore) -> None:
    row = await suspended(store)
    assert [] == await store.wakeable(5, 60.0)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    assert [row.uuid] == await store.wakeable(5, 60.0)
    [held] = await claim(store, token="t2")

    await store.give_back(held.row, "t2")

    assert [row.uuid] == await store.wakeable(5, 60.0)


# --- people


async def test_an_answer_makes_the_run_due(store: SqlRunStore) -> None:
    row = await suspended(store)

    assert StoredAnswer() == await store.answer(row, inbox_row(), audit_row(run=row.uuid), replace=False)

    assert inbox_row() == await store.inbox(row.uid, "q1")
    assert ["answered"] == [found.decision for found in await store.audit(row.uuid, None)]
    [held] = await claim(store, token="t2")
    assert (RunStatus.WAITING_FOR_APPROVAL, "answer", "grace") == (held.was, held.row.cause, held.row.answered_by)


async def test_of_twenty_answers_one_is_stored_and_the_others_are_told_whose(store: SqlRunStore) -> None:
    row = await suspended(store)
    names = [f"decider-{i}" for i in range(20)]

    answers = await asyncio.gather(
        *(store.answer(row, inbox_row(decided_by=name), audit_row(actor=name), replace=False) for name in names)
    )

    [winner] = [name for name, answer in zip(names, answers, strict=True) if answer.problem is None]
    assert [StoredAnswer(problem="answered", decided_by=winner)] * 19 == [a for a in answers if a.problem is not None]
    assert [winner] == [found.actor for found in await store.audit(None, None)]


async def test_who_comes_after_the_run_went_on_is_told_whose_answer_it_was(store: SqlRunStore) -> None:
    row = await suspended(store)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2")
    late = inbox_row(decided_by="late")

    assert StoredAnswer(problem="answered", decided_by="grace") == await store.answer(
        row, late, audit_row(), replace=False
    )
    await store.commit(append(held, 2, folded="q1", folded_seq=2))
    assert "answered" == (await store.answer(row, late, audit_row(), replace=False)).problem


async def test_a_refused_answer_leaves_no_trace(both: OpenedStore) -> None:
    store = both.store
    queued = await created(store)
    waiting = await suspended(store, expires_in_s=60.0)

    answers = [
        await store.answer(queued, inbox_row(), audit_row(), replace=False),
        await store.answer(waiting, inbox_row("q0"), audit_row(), replace=False),
    ]
    both.database.shift_clock(60.5)
    answers.append(await store.answer(waiting, inbox_row(), audit_row(), replace=False))

    assert ["not_waiting", "stale", "expired"] == [answer.problem for answer in answers]
    assert [] == await store.audit(None, None)
    assert await store.inbox(waiting.uid, "q1") is None


async def blocked_run(store: SqlRunStore) -> RunRow:
    row = await suspended(store, expires_in_s=600.0)
    await store.answer(row, inbox_row(), audit_row(), replace=False)
    [held] = await claim(store, token="t2", uuids=[row.uuid])
    await store.block(held.row.uid, "t2", "{}")
    return await read(store, row)


async def test_a_denial_replaces_the_unspent_answer_of_a_blocked_run(store: SqlRunStore) -> None:
    row = await blocked_run(store)
    denial = inbox_row(decided_by="denier", payload=b"sealed denial")

    assert "answered" == (await store.answer(row, denial, audit_row(), replace=False)).problem
    assert StoredAnswer() == await store.answer(row, denial, audit_row(), replace=True)

    assert denial == await store.inbox(row.uid, "q1")
    [held] = await claim(store, token="t3")
    assert ("answer", "denier", "{}", False) == (
        held.row.cause,
        held.row.answered_by,
        held.row.blocked,
        held.expired,
    )


async def test_an_answer_of_a_run_that_is_not_blocked_is_never_replaced(store: SqlRunStore) -> None:
    row = await suspended(store)
    await store.answer(row, inbox_row(), audit_row(), replace=False)

    answer = await store.answer(row, inbox_row(decided_by="denier"), audit_row(), replace=True)

    assert StoredAnswer(problem="answered", decided_by="grace") == answer


async def test_a_person_retries_a_blocked_run(both: OpenedStore) -> None:
    store = both.store
    row = await blocked_run(store)

    assert await store.retry_blocked(row, audit_row("resumed"))

    both.database.shift_clock(601)  # the claim comes late; the retry was in time
    [held] = await claim(store, token="t3")
    assert ("resume", "{}", False) == (held.row.cause, held.row.blocked, held.expired)
    assert not await store.retry_blocked(row, audit_row("resumed"))
    assert ["answered", "resumed"] == [found.decision for found in await store.audit(None, None)]


async def test_an_expired_or_unblocked_run_is_not_retried(both: OpenedStore) -> None:
    waiting = await suspended(both.store)
    blocked = await blocked_run(both.store)
    both.database.shift_clock(601)

    assert not await both.store.retry_blocked(waiting, audit_row())
    assert not await both.store.retry_blocked(blocked, audit_row())


async def test_a_running_run_is_cancelled_once(store: SqlRunStore) -> None:
    row = await created(store)
    assert not await store.cancel_running(row, audit_row("cancelled"))
    await claim(store)

    assert await store.cancel_running(row, audit_row("cancelled"))
    assert not await store.cancel_running(row, audit_row("cancelled"))

    row = await read(store, row)
    assert (RunStatus.CANCELLED, "t1", TerminationReason.CANCELLED) == (row.status, row.token, row.reason)
    assert row.finished_at is not None
    assert 1 == len(await store.audit(None, None))


async def test_a_run_that_waits_is_closed(store: SqlRunStore) -> None:
    row = await suspended(store, expires_in_s=60.0)
    closing = entry(2, "cancel_requested", payload=b"")

    assert await store.close(row, closing, b"closed", audit_row("cancelled"))

    closed = await read(store, row)
    assert (RunStatus.CANCELLED, 2, b"closed", None) == (closed.status, closed.seq, closed.head, closed.due_at)
    assert (None, None, TerminationReason.CANCELLED) == (closed.question, closed.expires_at, closed.reason)
    assert [1, 2] == await sequences(store, row)
    assert not await store.close(row, closing, b"closed", audit_row("cancelled"))
    assert not await store.close(closed, entry(3), b"closed", None)
    assert 1 == len(await store.audit(None, None))


async def test_a_run_that_moved_is_not_closed(store: SqlRunStore) -> None:
    seen = await created(store)
    [held] = await claim(store)

    assert not await store.close(seen, entry(1), b"closed", None)
    assert not await store.close(held.row, entry(1), b"closed", None)
    assert [] == await sequences(store, seen)


async def test_a_dead_cancelled_run_is_closed_after_its_lease(both: OpenedStore) -> None:
    store = both.store
    row = await created(store)
    await claim(store)
    await store.cancel_running(row, audit_row())
    cancelled = await read(store, row)
    assert [] == await store.close_dead_cancelled(5)
    assert not await store.close(cancelled, entry(1), b"closed", None)
    both.database.shift_clock(LEASE_S + 1)

    [dead] = await store.close_dead_cancelled(5)
    assert await store.close(dead, entry(1), b"closed", None)

    closed = await read(store, row)
    assert (RunStatus.CANCELLED, None, 1) == (closed.status, closed.token, closed.seq)
    assert closed.finished_at == cancelled.finished_at
    assert [] == await store.close_dead_cancelled(5)


# --- reads


async def test_runs_are_listed_newest_first(both: OpenedStore) -> None:
    store = both.store
    old = await created(store)
    both.database.shift_clock(100)
    waiting = await suspended(store)
    other = await created(store, owner="grace")

    async def listed(wanted: RunFilter) -> list[int]:
        return [row.uid for row in await store.runs(wanted)]

    assert [other.uid, waiting.uid, old.uid] == await listed(RunFilter())
    assert [other.uid] == await listed(RunFilter(limit=1))
    assert [other.uid] == await listed(RunFilter(owner="grace"))
    assert [other.uid, waiting.uid] == await listed(RunFilter(since=old.created_at + 50))
    assert [waiting.uid] == await listed(RunFilter(statuses=(RunStatus.WAITING_FOR_APPROVAL, RunStatus.FAILED)))


async def test_dead_runs_are_those_that_a_person_may_requeue(store: SqlRunStore) -> None:
    reasons = (TerminationReason.PROVIDER_FAILED, TerminationReason.CORRUPT, TerminationReason.NOT_RETRYABLE)
    for reason in reasons:
        await created(store)
        [held] = await claim(store)
        await store.commit(append(held, 1, status=RunStatus.FAILED, reason=reason, due=Due.NEVER, release=True))
    last = (await store.runs(RunFilter(limit=1)))[0]
    await created(store, origin=Origin.REQUEUE, lineage_run=last.uuid, lineage_at=1)

    dead = await store.runs(RunFilter(dead=True))

    assert [TerminationReason.PROVIDER_FAILED] == [row.reason for row in dead]


async def test_what_is_not_there_reads_as_nothing(store: SqlRunStore) -> None:
    assert await store.run("unknown") is None
    assert await store.document(1, "state") is None
    assert await store.inbox(1, "q") is None
    assert [] == await store.entries(1)
    assert [] == await store.sources(1)


async def test_many_reads_at_once_get_each_its_own(store: SqlRunStore) -> None:
    rows = [await created(store) for _ in range(30)]

    found = await asyncio.gather(*(store.run(row.uuid) for row in rows), store.entries(rows[0].uid))

    assert [*rows, []] == found


async def test_a_read_that_fails_fails_alone(store: SqlRunStore) -> None:
    row = await created(store)

    bad, good = await asyncio.gather(store.run("\ud800"), store.run(row.uuid), return_exceptions=True)

    assert isinstance(bad, StoreError)
    assert row == good


async def test_the_audit_is_read_oldest_first(both: OpenedStore) -> None:
    store = both.store
    await store.create(new_run(audits=(audit_row("one", run="r"), audit_row("two"))))
    both.database.shift_clock(100)
    await store.create(new_run(audits=(audit_row("three", run="r"),)))

    everything = await store.audit(None, None)

    assert ["one", "two", "three"] == [row.decision for row in everything]
    assert ["one", "three"] == [row.decision for row in await store.audit("r", None)]
    assert ["three"] == [row.decision for row in await store.audit(None, everything[0].at + 50)]


async def test_the_clock_is_the_databases(both: OpenedStore) -> None:
    before = await both.store.now()
    both.database.shift_clock(3600)

    assert 3600 == pytest.approx(await both.store.now() - before, abs=5)
