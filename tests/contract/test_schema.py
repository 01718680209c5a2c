"""The schema: constraints repeat the machine's invariants, and content stands in sealed columns only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from codec.vocabulary import QuestionKind, RunStatus, TerminationReason
from tests.support.stores import POSTGRES, open_database
from worker.adapters.sql.catalogue_tables import catalogue_version, policy
from worker.adapters.sql.engine import Database
from worker.adapters.sql.schema import metadata
from worker.adapters.sql.sealed import SEALED
from worker.adapters.sql.tables import doc, exposure, inbox, journal, run
from worker.ports.runs import StoreError

OPEN_BINARY = {
    "run.head",
    "run.wrapped_key",
    "journal.prev",
    *(f"{t}.wrapped_key" for t in ("configuration", "snippet", "skill")),
}
"""Columns of bytes that are no content: hashes and wrapped keys."""

ROW: dict[str, Any] = {
    "uuid": "u",
    "status": "queued",
    "head": b"",
    "key_id": "k",
    "doc_version": 1,
    "owner": "o",
    "origin": "api",
    "configuration_uid": 1,
    "configuration": "c",
    "created_at": 1.0,
    "updated_at": 1.0,
}


@pytest.fixture(params=("memory", POSTGRES))
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(request.param, tmp_path) as database:
        yield database


async def insert(database: Database, table: sa.Table, **values: Any) -> None:
    def work(connection: sa.Connection) -> None:
        connection.execute(sa.insert(table).values(**values))

    await database.transact(work)


def held(status: str) -> dict[str, Any]:
    """What a row of this status must have beside it."""
    values: dict[str, Any] = {"status": status}
    if status == "running":
        values |= {"token": "t", "due_at": 1.0}
    if status.startswith("waiting"):
        values |= {"question": "q"}
    if status in ("completed", "failed", "cancelled"):
        values |= {"finished_at": 2.0}
    return values


@pytest.mark.parametrize("status", list(RunStatus))
async def test_every_status_can_be_stored(database: Database, status: RunStatus) -> None:
    await insert(database, run, **ROW | held(status.value))


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "sleeping"},
        {"origin": "elsewhere"},
        {"reason": "bored"},
        {"status": "running", "due_at": 1.0},
        {"status": "running", "token": "t"},
        {"token": "t"},
        held("waiting_for_input") | {"token": "t"},
        held("failed") | {"token": "t"},
        {"status": "waiting_for_approval"},
        {"status": "completed"},
        {"status": "cancelled"},
        {"finished_at": 2.0},
    ],
)
async def test_a_row_that_the_machine_cannot_make_is_refused(database: Database, broken: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="integrity"):
        await insert(database, run, **ROW | broken)


async def test_a_cancelled_run_may_keep_its_token(database: Database) -> None:
    await insert(database, run, **ROW | held("cancelled") | {"token": "t", "due_at": 1.0})


@pytest.mark.parametrize("reason", list(TerminationReason))
async def test_every_reason_can_be_stored(database: Database, reason: TerminationReason) -> None:
    await insert(database, run, **ROW | held("failed") | {"reason": reason.value})


async def test_what_hangs_on_a_run_needs_it(database: Database) -> None:
    with pytest.raises(StoreError, match="integrity"):
        await insert(database, doc, run_uid=1, kind="state", version=1, seq=1, payload=b"")


async def test_a_sequence_is_there_once(database: Database) -> None:
    await insert(database, run, **ROW)
    entry = {"run_uid": 1, "seq": 1, "kind": "k", "at": 1.0, "segment": 1, "token": "t"}
    entry |= {"policy_version": 1, "prev": b"", "meta": "{}", "payload": b""}
    await insert(database, journal, **entry)

    with pytest.raises(StoreError, match="integrity"):
        await insert(database, journal, **entry)


@pytest.mark.parametrize(("table", "column"), [(doc, "kind"), (inbox, "kind"), (exposure, "state")])
def test_words_are_bounded(table: sa.Table, column: str) -> None:
    checks = [c for c in table.constraints if isinstance(c, sa.CheckConstraint)]

    assert any(column in str(check.sqltext) for check in checks)


async def test_a_new_database_enforces_from_version_one(database: Database) -> None:
    def read(connection: sa.Connection) -> tuple[Any, ...]:
        return (
            connection.execute(sa.select(catalogue_version.c.id, catalogue_version.c.version)).one(),
            connection.execute(sa.select(policy.c.name, policy.c.value)).one(),
        )

    assert ((1, 1), ("data_class_enforcement", "enforce")) == await database.read(read)


def test_every_column_of_bytes_is_sealed_or_known() -> None:
    binary = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, sa.LargeBinary)
    }

    assert binary == OPEN_BINARY | {f"{table.name}.{name}" for table, name in SEALED}


def test_question_kinds_have_a_waiting_status() -> None:
    # The statement that restores a status knows these three; a fourth must be thought about.
    assert {"approval", "input", "outcome"} == {kind.value for kind in QuestionKind}
