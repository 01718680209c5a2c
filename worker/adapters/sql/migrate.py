"""Bring a database to the schema of this build.

Safe when several processes migrate at once: the first one holds the database (an immediate transaction on SQLite, an
advisory lock on PostgreSQL), the others find nothing left to do. A migration that fails leaves nothing behind: DDL is
transactional on both, since we begin the transaction and no driver ends it in between.

A revision is named NUMBER or NUMBER_for_NUMBER; the second number is the oldest build that may run beside it. So a
build that is older than the database knows whether it may start. See docs/migrations.md.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from worker.adapters.sql.engine import Database
from worker.adapters.sql.locks import MIGRATION_KEY

__all__ = ["MigrationError", "current", "head", "migrate", "schema_state"]

_FOLDER: Final = Path(__file__).parent / "migrations"
_WAIT_S: Final = 600.0
"""Seconds that one process waits for another one's migration, and that one statement of a migration may take."""
_LOCK_WAIT: Final = "5s"
"""How long a change of a busy table waits on PostgreSQL: everybody who comes later stands behind it meanwhile. A
migration that cannot get its lock fails whole, and is run again. A sixth of a lease, so that no run is lost."""
_one_at_a_time: Final = threading.Lock()  # alembic keeps the running migration in globals


class MigrationError(Exception):
    """The database is not one that this build can bring up to date."""


def migrate(url: str) -> list[str]:
    """Apply the revisions that the database lacks, and give them in order; [] when it is up to date.

    Blocks and runs an event loop of its own: from a coroutine call it in a thread.
    Errors: `MigrationError` when the database comes from a newer build, `StoreError` (`busy` when a table was in use
    for too long). Nothing was changed then.
    """
    with _one_at_a_time:
        return asyncio.run(_migrate(url))


def current(url: str) -> str | None:
    """Give the database's revision, None when it has none. Blocks like `migrate`. Errors: `StoreError`."""
    return asyncio.run(_current(url))


def head() -> str | None:
    """Give the revision of this build."""
    return ScriptDirectory(str(_FOLDER)).get_current_head()


def schema_state(url: str) -> str:
    """Give `current`, `missing`, `older`, or `newer`: of a later build, but this one may run beside it. Blocks.

    Errors: `MigrationError` when this build must not run on it, `StoreError`.
    """
    found, mine = current(url), head()
    if found == mine:
        return "current"
    if found is None:
        return "missing"
    if _known(found):
        return "older"
    if mine is None or not _serves(found, mine):
        raise MigrationError(f"the database is at revision {found}, which this build is too old for")
    return "newer"


def _known(revision: str) -> bool:
    return revision in {script.revision for script in ScriptDirectory(str(_FOLDER)).walk_revisions()}


def _serves(revision: str, build: str) -> bool:
    """Tell whether a schema says that it serves the build whose own revision is `build`. Unreadable = no."""
    floor = re.fullmatch(r"[0-9]{4}_for_([0-9]{4})", revision)
    return floor is not None and floor[1] <= build[:4]


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
    if connection.dialect.name == "postgresql":  # in this order: another one's migration may take longer
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.literal(MIGRATION_KEY, sa.BigInteger))))
        connection.execute(sa.select(sa.func.set_config("lock_timeout", _LOCK_WAIT, True)))
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    before = _revision(connection)
    if before is not None and not _known(before):
        raise MigrationError(f"the database is at revision {before}, which is newer than this build")
    command.upgrade(config, "head")
    applied = [script.revision for script in scripts.iterate_revisions("head", before or "base")]
    return applied[::-1]
