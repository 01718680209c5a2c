"""Run stores to test with, and readable builders of what goes into them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from codec.vocabulary import ExposureState, Origin, QuestionKind, RunStatus
from tests.support.postgres import server
from worker.adapters.sql.engine import Database
from worker.adapters.sql.store import SqlRunStore
from worker.ports.records import (
    Append,
    AuditRow,
    Claimed,
    Due,
    EntryRow,
    ExposureWrite,
    InboxRow,
    NewRun,
    RunRow,
)

__all__ = [
    "DATABASES",
    "FILES",
    "LEASE_S",
    "POSTGRES",
    "OpenedStore",
    "append",
    "audit_row",
    "claim",
    "created",
    "database_url",
    "entry",
    "exposure",
    "inbox_row",
    "new_run",
    "open_database",
    "open_store",
    "opened",
    "suspended",
]

POSTGRES: Final = pytest.param("postgresql", marks=pytest.mark.postgres)
FILES: Final = ("sqlite", POSTGRES)
"""Kinds of databases that several processes can share."""
DATABASES: Final = ("memory", *FILES)
"""Every kind: what a contract suite runs on."""

LEASE_S = 30.0
KEYS = frozenset({"k-1"})


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store and the database below it."""

    store: SqlRunStore
    database: Database


@asynccontextmanager
async def open_store(
    url: str, *, create: bool = True, fault: Callable[[str], None] | None = None
) -> AsyncIterator[OpenedStore]:
    """Open a store, with its schema if the database is new, and close both at the end."""
    database = Database.open(url, fault=fault)
    store = SqlRunStore(database, lease_s=LEASE_S)
    try:
        if create:
            await database.create_all()
        yield OpenedStore(store, database)
    finally:
        await store.stop()
        await database.close()


@contextmanager
def database_url(kind: str, folder: Path) -> Iterator[str]:
    """Give the URL of a new database of a kind, gone at the end. Only the one on PostgreSQL has its schema already."""
    if kind == "postgresql":
        with server().clone() as url:
            yield url
    else:
        yield {"memory": "sqlite://", "sqlite": f"sqlite:///{folder / 'runs.db'}"}[kind]


@asynccontextmanager
async def open_database(kind: str, folder: Path) -> AsyncIterator[Database]:
    """Open a new database of a kind with its schema."""
    with database_url(kind, folder) as url:
        database = Database.open(url)
        try:
            if kind != "postgresql":
                await database.create_all()
            yield database
        finally:
            await database.close()


@asynccontextmanager
async def opened(kind: str, folder: Path, fault: Callable[[str], None] | None = None) -> AsyncIterator[OpenedStore]:
    """Open an empty store of a kind."""
    with database_url(kind, folder) as url:
        async with open_store(url, create=kind != "postgresql", fault=fault) as both:
            yield both


def new_run(**changes: Any) -> NewRun:
    """Build a queued run."""
    run = NewRun(
        uuid=str(uuid.uuid4()),
        owner="ada",
        origin=Origin.QUEUE,
        configuration_uid=1,
        configuration="support",
        wrapped_key=b"wrapped",
        key_id="k-1",
        doc_version=1,
        documents=(),
        cause="start",
        head=b"head 0",
    )
    return replace(run, **changes)


def entry(seq: int, kind: str = "model_replied", **changes: Any) -> EntryRow:
    """Build a journal entry."""
    row = EntryRow(seq=seq, kind=kind, segment=1, policy=1, prev=b"prev", meta="{}", payload=b"sealed")
    return replace(row, **changes)


def append(held: Claimed | RunRow, first: int, **changes: Any) -> Append:
    """Build a step of one entry that keeps the run with its segment."""
    row, token = (held.row, held.token) if isinstance(held, Claimed) else (held, held.token or "")
    step = Append(
        run_uid=row.uid,
        token=token,
        first=first,
        entries=(entry(first),),
        head=f"head {first}".encode(),
        policy=1,
        status=RunStatus.RUNNING,
        due=Due.LEASE,
    )
    return replace(step, **changes)


def exposure(**changes: Any) -> ExposureWrite:
    """Build a send of a snippet's text."""
    row = ExposureWrite(
        kind="snippet",
        uid=7,
        identifier="tone",
        origin="configuration",
        data_class="source_code",
        provider_uid=3,
        provider="openai",
        model="m",
        zone="external_eu",
        mode="enforce",
        state=ExposureState.POSSIBLE,
        sends=1,
    )
    return replace(row, **changes)


def audit_row(decision: str = "answered", **changes: Any) -> AuditRow:
    """Build an audit row."""
    return replace(AuditRow(decision=decision, actor="grace", via="web"), **changes)


def inbox_row(question: str = "q1", **changes: Any) -> InboxRow:
    """Build an approval."""
    row = InboxRow(question=question, kind="decision", decided_by="grace", via="web", payload=b"sealed answer")
    return replace(row, **changes)


async def created(store: SqlRunStore, **changes: Any) -> RunRow:
    """Create a run."""
    row, new = await store.create(new_run(**changes))
    assert new
    return row


async def claim(
    store: SqlRunStore, limit: int = 1, *, token: str = "t1", uuids: Sequence[str] | None = None, **changes: Any
) -> list[Claimed]:
    """Claim due runs as a worker that can open everything."""
    terms: dict[str, Any] = {"holder": "worker-1", "lease_s": LEASE_S, "key_ids": KEYS, "doc_version": 1} | changes
    return await store.claim(limit, token=token, uuids=uuids, **terms)


async def suspended(store: SqlRunStore, *, expires_in_s: float | None = None, **changes: Any) -> RunRow:
    """Create a run, claim it and let it ask `q1`; gives the waiting row."""
    row = await created(store)
    [held] = await claim(store, uuids=[row.uuid])
    asked = append(
        held,
        1,
        status=RunStatus.WAITING_FOR_APPROVAL,
        due=Due.EXPIRY,
        release=True,
        question="q1",
        question_kind=QuestionKind.APPROVAL,
        question_number=1,
        expires_in_s=expires_in_s,
    )
    await store.commit(replace(asked, **changes))
    waiting = await store.run(row.uuid)
    assert waiting is not None
    return waiting
