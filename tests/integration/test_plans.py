"""Plans: with many runs no statement reads a table whole that grows with them, on either engine.

Every statement that a unit of work sends is caught and explained, on PostgreSQL for its values and for any values: a
prepared statement may be planned once for all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import pytest
import sqlalchemy as sa

from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, Origin, RunStatus
from tests.support.stores import (
    FILES,
    KEYS,
    LEASE_S,
    audit_row,
    database_url,
    entry,
    exposure,
    inbox_row,
    new_run,
)
from worker.adapters.sealing import KeyRing
from worker.adapters.sql.catalogue_lists import read_carrying
from worker.adapters.sql.claims import (
    ClaimTerms,
    block_run,
    claim_due,
    give_back_run,
    list_dead_cancelled,
    renew_leases,
    take_wakeable,
)
from worker.adapters.sql.commit import commit_steps
from worker.adapters.sql.create import create_run
from worker.adapters.sql.engine import Database
from worker.adapters.sql.inbox import Given, store_answers
from worker.adapters.sql.migrate import migrate
from worker.adapters.sql.people import cancel_run, close_run, retry_blocked_run
from worker.adapters.sql.purge import find_purgeable, purge_runs
from worker.adapters.sql.reads import (
    list_audit,
    list_runs,
    read_answer,
    read_document,
    read_entries,
    read_sources,
    runs_of,
    stored_of,
)
from worker.adapters.sql.rewrap import find_under, rewrap_rows
from worker.adapters.sql.tables import exposure as exposure_table
from worker.adapters.sql.tables import run
from worker.ports.keeping import Wanted
from worker.ports.records import Append, Document, Due, RunFilter, RunRow, SourceRow

T = TypeVar("T")

RUNS: Final = 50_000
NUMBERS: Final = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {RUNS})"
LEASED_UNTIL: Final = 4e9
ROWS: Final = (
    # Of a hundred runs two are due, three run, one of them cancelled and dead, five wait, the others are over.
    f"""INSERT INTO run (uid, uuid, status, seq, head, token, due_at, question, expires_at, reason, wrapped_key, key_id,
        doc_version, owner, origin, configuration_uid, configuration, created_at, updated_at, finished_at)
    {NUMBERS} SELECT n, 'run-' || n,
        CASE WHEN n % 100 < 2 THEN 'queued' WHEN n % 100 < 4 THEN 'running' WHEN n % 100 = 4 THEN 'cancelled'
             WHEN n % 100 < 10 THEN 'waiting_for_approval' WHEN n % 100 < 15 THEN 'failed' ELSE 'completed' END,
        2, '', CASE WHEN n % 100 BETWEEN 2 AND 4 THEN 't1' END,
        CASE WHEN n % 100 < 2 THEN 1000.0 + n WHEN n % 100 < 4 THEN {LEASED_UNTIL} WHEN n % 100 = 4 THEN 1000.0 + n
             WHEN n % 100 < 7 THEN {LEASED_UNTIL} END,
        CASE WHEN n % 100 BETWEEN 5 AND 9 THEN 'q1' END, CASE WHEN n % 100 BETWEEN 5 AND 6 THEN {LEASED_UNTIL} END,
        CASE WHEN n % 100 BETWEEN 10 AND 14 THEN 'provider_failed' END,
        'w', 'k-1', 1, 'owner-' || (n % 1000), 'queue', 1 + n % 200, 'c', 1000.0 + n, 1000.0 + n,
        CASE WHEN n % 100 = 4 OR n % 100 > 9 THEN 2000.0 END FROM numbers""",
    f"""INSERT INTO journal (run_uid, seq, kind, at, segment, token, policy_version, prev, meta, payload)
    {NUMBERS} SELECT n, part.seq, 'k', 1.0, 1, 't1', 1, '', '', ''
    FROM numbers, (SELECT 1 AS seq UNION ALL SELECT 2) part""",
    f"INSERT INTO doc (run_uid, kind, version, seq, payload) {NUMBERS} SELECT n, 'state', 1, 1, '' FROM numbers",
    f"""INSERT INTO inbox (run_uid, question, kind, decided_by, via, at, payload)
    {NUMBERS} SELECT n, 'q0', 'decision', 'ana', 'cli', 1.0, '' FROM numbers""",
    f"""INSERT INTO run_source (run_uid, kind, source_uid, name, origin, text_hash)
    {NUMBERS} SELECT n, 'snippet', 1 + n % 500, 's', 'forced', '' FROM numbers""",
    f"""INSERT INTO exposure (run_uid, kind, source_uid, data_class, provider_uid, model, zone, identifier, origin,
        provider, mode, state, first_at, last_at, sends)
    {NUMBERS} SELECT n, 'snippet', 1 + n % 500, '', 1 + n % 20, 'm', 'local', 's', 'forced', 'p', 'enforce', 'answered',
        1.0, 1.0, 1 FROM numbers""",
    f"""INSERT INTO audit (at, run, decision, actor, via)
    {NUMBERS} SELECT 1000.0 + n, 'run-' || n, 'answered', 'ana', 'cli' FROM numbers""",
    """INSERT INTO snippet (uid, identifier, label, text, text_hash, wrapped_key, key_id, active)
    VALUES (7, 'tone', 'tone', '', '', '', 'k', TRUE)""",
)


def fill(connection: sa.Connection) -> None:
    """Insert everything in bulk, and let the server look at it."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # every reference is there
    for statement in ROWS:
        connection.exec_driver_sql(statement)
    if connection.dialect.name == "postgresql":
        for table in ("run", "audit"):
            connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', 'uid'), {RUNS})")
        connection.exec_driver_sql("ANALYZE")  # the server does it by itself, later; nobody does it on SQLite


def use(url: str, work: Callable[[sa.Connection], T]) -> T:
    """Run something in a transaction of its own; there must be no loop in this thread."""

    async def run() -> T:
        database = Database.open(url, wait_s=120.0)
        try:
            return await database.transact(work)
        finally:
            await database.close()

    return asyncio.run(run())


@pytest.fixture(scope="module", params=FILES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with database_url(request.param, tmp_path_factory.mktemp("plans")) as url:
        if request.param == "sqlite":
            migrate(url)
        use(url, fill)
        yield url


@dataclass(frozen=True, slots=True)
class Sent:
    """One statement as it was sent, and whether it was sent with many rows of values."""

    text: str
    values: Any


class Undone(Exception):
    """Ends a transaction that is only there to be looked at."""


def explained(url: str, work: Callable[[sa.Connection], object]) -> str:
    """Run a unit of work, explain each statement that it sent, and undo it; gives all plans as one text."""
    plans: list[str] = []

    def catch(connection: sa.Connection) -> None:
        sent: list[Sent] = []
        engine = connection.engine

        def note(_c: Any, _cursor: Any, text: str, values: Any, _context: Any, many: bool) -> None:
            sent.append(Sent(text, values[0] if many else values))

        sa.event.listen(connection, "before_cursor_execute", note)
        work(connection)
        sa.event.remove(connection, "before_cursor_execute", note)
        explain = _sqlite_plan if engine.dialect.name == "sqlite" else _postgres_plans
        for number, statement in enumerate(sent):
            if re.match(r"(?i)\s*(SELECT|UPDATE|INSERT|DELETE|WITH)", statement.text):
                plans.extend(explain(connection, statement, number))
        raise Undone

    with pytest.raises(Undone):
        use(url, catch)
    return "\n".join(plans)


def _sqlite_plan(connection: sa.Connection, sent: Sent, _: int) -> list[str]:
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent.text}", sent.values)]


def _postgres_plans(connection: sa.Connection, sent: Sent, number: int) -> list[str]:
    """Explain for these values, and as a plan that is made once for all values."""
    plans = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {sent.text}", sent.values)]
    connection.exec_driver_sql(f"PREPARE s{number} AS {sent.text}")
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
    values = f"({', '.join(['NULL'] * len(sent.values))})" if sent.values else ""
    plans += [row[0] for row in connection.exec_driver_sql(f"EXPLAIN EXECUTE s{number}{values}")]
    connection.exec_driver_sql(f"DEALLOCATE s{number}")
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = auto")
    return plans


def _create_twice(connection: sa.Connection) -> None:
    create_run(connection, new_run(idempotency="k"))
    create_run(connection, new_run(idempotency="k"))


def terms(uuids: list[str] | None = None) -> ClaimTerms:
    return ClaimTerms(limit=32, token="t2", holder="w", lease_s=LEASE_S, key_ids=KEYS, doc_version=1, uuids=uuids)


def step(uid: int, first: int = 3) -> Append:
    """Build a step that writes something of everything."""
    return Append(
        run_uid=uid,
        token="t1",
        first=first,
        entries=(entry(first),),
        head=b"",
        policy=1,
        status=RunStatus.RUNNING,
        due=Due.LEASE,
        documents=(Document(kind="state", version=1, seq=first, payload=b""),),
        sources=(SourceRow(kind="snippet", uid=7, name="s", origin="forced", seen=None, text_hash=""),),
        exposures=(exposure(),),
        audits=(audit_row(),),
        folded="q0",
        folded_seq=first,
    )


RUNNING, ASKING, GROWS = 202, 205, ("run", "journal", "doc", "inbox", "run_source", "exposure", "audit")
ROW: Final = RunRow(
    uid=ASKING,
    uuid=f"run-{ASKING}",
    status=RunStatus.WAITING_FOR_APPROVAL,
    seq=2,
    head=b"",
    owner="owner-205",
    origin=Origin.QUEUE,
    configuration_uid=6,
    configuration="c",
    wrapped_key=b"",
    key_id="k-1",
    doc_version=1,
    segment=0,
    attempts=0,
    in_vain=0,
    created_at=0.0,
    updated_at=0.0,
)


RING: Final = KeyRing(keys={"k-1": b"1" * 32, "k-2": b"2" * 32}, active="k-2", subkey=b"s" * 32)
OVER: Final = (15, 16, 115)
"""Runs that have ended."""


def _rewrap(connection: sa.Connection) -> None:
    wrapped = RING.activated("k-1").wrapped(b"d" * 32)
    connection.execute(sa.update(run).where(run.c.uid.in_(OVER)).values(wrapped_key=wrapped))
    assert len(OVER) == rewrap_rows(connection, run, RING, OVER)


def exposed(**where: Any) -> Callable[[sa.Connection], object]:
    """Build the look-up of who received what."""
    conditions = [exposure_table.c[name] == value for name, value in where.items()]
    return lambda connection: connection.execute(sa.select(exposure_table).where(*conditions)).first()


PLANS: Final[dict[str, tuple[Callable[[sa.Connection], object], tuple[str, ...]]]] = {
    "claim": (lambda c: claim_due(c, terms()), ("ix_run_due_at", "pk_run")),
    "claim of named runs": (lambda c: claim_due(c, terms(["run-100", "run-201"])), ("uq_run_uuid", "pk_run")),
    "wakeable": (lambda c: take_wakeable(c, 100, 5.0), ("ix_run_due_at", "pk_run")),
    "dead cancelled": (lambda c: list_dead_cancelled(c, 100), ("ix_run_cancelled",)),
    "commit": (
        lambda c: commit_steps(c, [step(RUNNING), step(RUNNING + 1), step(500, 9)], LEASE_S, tried_at=1.0),
        ("pk_run", "pk_journal", "pk_inbox"),
    ),
    "renew": (lambda c: renew_leases(c, [(RUNNING, "t1"), (RUNNING + 1, "t1")], LEASE_S), ("pk_run",)),
    "block": (lambda c: block_run(c, RUNNING, "t1", "{}"), ("pk_run",)),
    "give back": (lambda c: give_back_run(c, msgspec.structs.replace(ROW, uid=RUNNING), "t1", 0.0), ("pk_run",)),
    "answer": (
        lambda c: store_answers(c, [Given(ASKING, inbox_row(), audit_row(), replace=True)]),
        ("pk_run", "pk_inbox"),
    ),
    "retry": (lambda c: retry_blocked_run(c, ASKING, audit_row()), ("pk_run",)),
    "cancel": (lambda c: cancel_run(c, RUNNING, audit_row()), ("pk_run",)),
    "close": (lambda c: close_run(c, ROW, entry(3), b"", audit_row()), ("pk_run",)),
    "create": (lambda c: create_run(c, new_run(idempotency="k")), ()),
    "same key": (_create_twice, ("uq_run_owner_idempotency",)),
    "run": (lambda c: runs_of(c, ["run-7", "run-9"]), ("uq_run_uuid",)),
    "stored": (lambda c: stored_of(c, [7, 9]), ("pk_run", "pk_doc", "pk_journal", "pk_inbox")),
    "entries": (lambda c: read_entries(c, 7, 0), ("pk_journal",)),
    "document": (lambda c: read_document(c, 7, "state"), ("pk_doc",)),
    "inbox": (lambda c: read_answer(c, 7, "q0"), ("pk_inbox",)),
    "sources": (lambda c: read_sources(c, 7), ("pk_run_source",)),
    "runs": (lambda c: list_runs(c, RunFilter(limit=50)), ()),
    "runs of a status": (
        lambda c: list_runs(c, RunFilter(statuses=(RunStatus.WAITING_FOR_APPROVAL,), limit=50)),
        ("ix_run_status_uid", "pk_run"),
    ),
    "runs of two statuses": (
        lambda c: list_runs(c, RunFilter(statuses=tuple(WAITING_STATUSES), limit=50)),
        ("ix_run_status_uid", "pk_run"),
    ),
    "runs of an owner": (lambda c: list_runs(c, RunFilter(owner="owner-7")), ("uq_run_owner_idempotency",)),
    "runs to requeue": (
        lambda c: list_runs(c, RunFilter(dead=True, limit=50)),
        ("ix_run_status_uid", "ix_run_lineage_run"),
    ),
    "audit of a run": (lambda c: list_audit(c, "run-7", None), ("ix_audit_run",)),
    "audit since": (lambda c: list_audit(c, None, 1000.0 + RUNS - 100), ("ix_audit_at",)),
    "carrying": (lambda c: read_carrying(c, "snippet", "tone"), ("ix_run_source_kind_source_uid", "pk_run")),
    "runs under a key": (lambda c: find_under(c, run, ["k-1"], 100, 500), ("pk_run",)),
    "wrapping anew": (_rewrap, ("pk_run",)),
    "runs to purge": (
        lambda c: find_purgeable(c, Wanted(statuses=tuple(FINAL_STATUSES), before=3000.0), 100, 200),
        ("ix_run_status_uid",),
    ),
    "purge": (lambda c: purge_runs(c, OVER, audit_row()), ("pk_run", "pk_doc", "pk_journal", "pk_inbox")),
    "exposure of a source": (exposed(kind="snippet", source_uid=7), ("ix_exposure_kind_source_uid",)),
    "exposure of a provider": (exposed(provider_uid=7), ("ix_exposure_provider_uid",)),
    "exposure of a run": (exposed(run_uid=7), ("pk_exposure",)),
}
ALIASES: Final = {
    "pk_run": "INTEGER PRIMARY KEY",
    "pk_journal": "journal USING PRIMARY KEY",
    "uq_run_uuid": r"\(uuid=\?\)",
    "uq_run_owner_idempotency": r"\(owner=\?",
}
"""SQLite's plans name keys in their own way, and unnamed indexes by the columns."""
READS_ALL: Final = re.compile(
    rf"Seq Scan on ({'|'.join(GROWS)})\b|^SCAN (run|later|journal|doc|inbox|run_source|exposure|audit)(?! USING)", re.M
)


NEWEST: Final = ("SCAN run",)
"""How SQLite names the reading of the primary key from its end, which a limit cuts off."""


@pytest.mark.parametrize("name", PLANS)
def test_a_statement_uses_its_index(url: str, name: str) -> None:
    work, indexes = PLANS[name]

    plans = explained(url, work)

    assert READS_ALL.search(plans) is None or plans in NEWEST, plans
    for index in indexes:
        assert re.search(_known_as(url, index), plans), plans


def _known_as(url: str, index: str) -> str:
    if not url.startswith("sqlite"):
        return rf"\b{index}\b"
    autoindex = rf"INDEX sqlite_autoindex_{index.removeprefix('pk_')}_1"
    return ALIASES.get(index, autoindex if index.startswith("pk_") else rf"\b{index}\b")


ORDERED: Final = ("claim", "wakeable", "dead cancelled", "runs", "runs under a key", "runs to purge")
"""What is cut off by a limit comes out of its index in its order."""


@pytest.mark.parametrize("name", ORDERED)
def test_nothing_is_sorted_that_comes_in_order(url: str, name: str) -> None:
    plans = explained(url, PLANS[name][0])

    assert not re.search(r"(?<!Incremental )Sort  |TEMP B-TREE", plans), plans
