"""Bring a database to the schema of this build.

Safe when several processes migrate at once: the first one holds the database (an immediate transaction on SQLite, an
advisory lock on PostgreSQL), the others find nothing left to do. A migration that fails leaves nothing behind: DDL is
transactional on both, since we begin the transaction and no driver ends it in between.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from worker.adapters.sql.engine import Database

__all__ = ["MigrationError", "current", "head", "migrate"]

_FOLDER: Final = Path(__file__).parent / "migrations"
_LOCK_KEY: Final = 0x7265_6761_7465  # "regate"; the key of PostgreSQL's advisory lock
_WAIT_S: Final = 600.0
"""Seconds that one process waits for another one's migration, and that one statement of a migration may take."""
_one_at_a_time: Final = threading.Lock()  # alembic keeps the running migration in globals


class MigrationError(Exception):
    """The database is not one that this build can bring up to date."""


def migrate(url: str) -> list[str]:
    """Apply the revisions that the database lacks, and give them in order; [] when it is up to date.

    Blocks and runs an event loop of its own: from a coroutine call it in a thread.
    Errors: `MigrationError` when the database comes from a newer build, `StoreError`. Nothing was changed then.
    """
    with _one_at_a_time:
        return asyncio.run(_migrate(url))


def current(url: str) -> str | None:
    """Give the database's revision, None when it has none. Blocks like `migrate`. Errors: `StoreError`."""
    return asyncio.run(_current(url))


def head() -> str | None:
    """Give the revision of this build."""
    return ScriptDirectory(str(_FOLDER)).get_current_head()


async def _migrate(url: str) -> list[str]:
    database = Database.open(url, wait_s=_WAIT_S)
    try:
        return await database.transact(_upgrade)
    finally:
        await database.close()


async def _current(url: str) -> str | None:
    database = Database.open(url)
    try:
        return await database.read(_revision)
    finally:
        await database.close()


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: sa.Connection) -> list[str]:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    before = _revision(connection)
    if before is not None and before not in {script.revision for script in scripts.walk_revisions()}:
        raise MigrationError(f"the database is at revision {before}, which is newer than this build")
    command.upgrade(config, "head")
    applied = [script.revision for script in scripts.iterate_revisions("head", before or "base")]
    return applied[::-1]
