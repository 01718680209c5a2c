"""What runs leave in a database: rows, bytes of their payloads, and growth of the file or the relations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bench import work
from bench.measuring import Case

__all__ = ["PAYLOADS", "Stored", "growth", "per_run", "stored"]

PAYLOADS: Final[Mapping[str, str]] = {"doc": "payload", "journal": "payload", "inbox": "payload"}
"""Where the sealed bytes of our runs are: columns by table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is there at one moment, in bytes. `disk` counts indexes, and on PostgreSQL row versions not vacuumed yet."""

    rows: int
    payload: int
    disk: int


async def stored(case: Case, payloads: Mapping[str, str] | None = None) -> Stored:
    """Count what all tables hold, and of `payloads` the length, through a connection of its own."""
    if case.engine == "sqlite":
        return await asyncio.to_thread(_in_file, case, payloads or {})
    engine = create_async_engine(case.url_for("asyncpg"))
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_count, payloads or {})
    finally:
        await engine.dispose()


def _in_file(case: Case, payloads: Mapping[str, str]) -> Stored:
    engine = sa.create_engine(case.url)
    try:
        with engine.connect() as connection:
            return _count(connection, payloads)
    finally:
        engine.dispose()


def _count(connection: sa.Connection, payloads: Mapping[str, str]) -> Stored:
    looked = sa.inspect(connection)
    schemas = (
        [None] if connection.dialect.name == "sqlite" else [n for n in looked.get_schema_names() if n[:3] != "inf"]
    )
    tables = [sa.table(name, schema=schema) for schema in schemas for name in looked.get_table_names(schema)]
    rows = sum(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in tables)
    lengths = [
        sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(sa.column(column))), 0)).select_from(sa.table(table))
        for table, column in payloads.items()
    ]
    payload = sum(int(connection.scalar(length) or 0) for length in lengths)
    return Stored(rows=rows, payload=payload, disk=_disk(connection))


def _disk(connection: sa.Connection) -> int:
    if connection.dialect.name == "postgresql":
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    pages, free, size = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def growth(before: Stored, after: Stored, runs: int) -> dict[str, Any]:
    """Give what each run added."""
    return {
        "rows_per_run": (after.rows - before.rows) / runs,
        "disk_bytes_per_run": (after.disk - before.disk) / runs,
    }


def per_run(before: Stored, after: Stored, runs: int) -> dict[str, Any]:
    """Give what each run of work W added, with its content beside it."""
    payload = (after.payload - before.payload) / runs
    return growth(before, after, runs) | {"payload_bytes_per_run": payload, "content_bytes": work.content_bytes()}
