"""Migrations: they give the schema of the code, whole or not at all, however many processes run them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.support.postgres import server
from tests.support.stores import FILES, claim, created, open_store
from worker.adapters.sql import migrate as module
from worker.adapters.sql.engine import Database
from worker.adapters.sql.migrate import MigrationError, current, head, migrate, schema_state
from worker.adapters.sql.schema import metadata
from worker.ports.runs import StoreError

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
ALL = ["0001", "0002_for_0001", "0003_for_0001"]


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with new_url(request.param, tmp_path) as url:
        yield url


@contextmanager
def new_url(kind: str, folder: Path) -> Iterator[str]:
    """Give the URL of a new database without a schema."""
    if kind == "postgresql":
        with server().empty() as url:
            yield url
    else:
        (folder / "a folder with 100%").mkdir()
        yield f"sqlite:///{folder / 'a folder with 100%' / 'runs.db'}"


def use(url: str, work: Callable[[sa.Connection], T]) -> T:
    """Run something on a snapshot of a database; there must be no loop in this thread."""

    async def read() -> T:
        database = Database.open(url)
        try:
            return await database.read(work)
        finally:
            await database.close()

    return asyncio.run(read())


def read(url: str, statement: str) -> list[tuple[Any, ...]]:
    return use(url, lambda connection: [tuple(row) for row in connection.execute(sa.text(statement))])


SQLITE_SCHEMA = (
    "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' AND name NOT LIKE 'sqlite%' ORDER BY name"
)
POSTGRES_SCHEMA = """
    SELECT conname, conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text NOT LIKE 'alembic%'
    UNION ALL
    SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename NOT LIKE 'alembic%'
    UNION ALL
    SELECT table_name || '.' || column_name,
           data_type || ' ' || is_nullable || ' ' || is_identity || coalesce(' ' || column_default, '')
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE 'alembic%'
"""


def schema(url: str) -> dict[str, list[str]]:
    """Read every table, constraint and index with its text."""
    statement = SQLITE_SCHEMA if url.startswith("sqlite") else POSTGRES_SCHEMA
    return {name: normal(sql) for name, sql in read(url, statement)}


def test_a_new_database_is_brought_up_once(url: str) -> None:
    assert current(url) is None

    assert ALL == migrate(url)

    assert head() == current(url)
    assert [] == migrate(url)
    assert [(1, 1)] == read(url, "SELECT id, version FROM catalogue_version")
    assert [("data_class_enforcement", "enforce")] == read(url, "SELECT name, value FROM policy")


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    migrate(url)

    assert 0o600 == Path(url.removeprefix("sqlite:///")).stat().st_mode & 0o777


def test_the_migrated_schema_is_that_of_the_code(url: str) -> None:
    migrate(url)

    assert [] == use(url, lambda connection: compare_metadata(MigrationContext.configure(connection), metadata))


@pytest.mark.parametrize("kind", FILES)
def test_the_migrated_schema_has_the_same_constraints(kind: str, tmp_path: Path) -> None:
    """The comparison of alembic sees neither checks nor conditions of indexes; their text must be the same."""
    for name in ("migrated", "created"):
        (tmp_path / name).mkdir()
    with new_url(kind, tmp_path / "migrated") as migrated, new_url(kind, tmp_path / "created") as made:
        migrate(migrated)
        asyncio.run(create(made))

        assert len(schema(migrated)) > 20
        assert schema(made) == schema(migrated)


async def create(url: str) -> None:
    async with open_store(url):
        pass


def normal(sql: str) -> list[str]:
    """Split DDL into its clauses: their order within a table means nothing.

    SQLite writes a column that was added later into the line of the one before it.
    """
    sql = re.sub(r", (\w+ [A-Z]+ DEFAULT)", r",\n\1", sql)
    return sorted(line.strip().rstrip(",") for line in sql.splitlines() if line.strip())


async def test_a_migrated_database_holds_runs(url: str) -> None:
    await asyncio.to_thread(migrate, url)

    async with open_store(url, create=False) as both:
        await created(both.store)
        assert 1 == len(await claim(both.store))


def test_processes_that_migrate_at_once_apply_each_revision_once(url: str) -> None:
    code = "import sys; from worker.adapters.sql.migrate import migrate; print(migrate(sys.argv[1]))"
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, url], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(4)
    ]

    outputs = sorted(process.communicate(timeout=60)[0].strip() for process in processes)

    assert [0] * 4 == [process.returncode for process in processes]
    assert [str(ALL), "[]", "[]", "[]"] == outputs


async def test_threads_that_migrate_at_once_apply_each_revision_once(url: str) -> None:
    applied = await asyncio.gather(*(asyncio.to_thread(migrate, url) for _ in range(3)))

    assert [[], [], ALL] == sorted(applied)


def only_migration(folder: Path, *statements: str) -> Path:
    """Write a folder of migrations with one revision that runs these statements."""
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text((module._FOLDER / "env.py").read_text())
    lines = [f"    op.execute({statement!r})" for statement in statements]
    head = "from alembic import op\nrevision, down_revision, branch_labels, depends_on = 'x', None, None, None\n"
    (folder / "versions" / "only.py").write_text("\n".join([f"{head}def upgrade():", *lines, ""]))
    return folder


def test_a_failed_migration_leaves_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = only_migration(tmp_path / "migrations", "CREATE TABLE half (a INTEGER)", "NONSENSE")
    monkeypatch.setattr(module, "_FOLDER", folder)

    with pytest.raises(StoreError):
        migrate(url)

    assert {} == schema(url)
    assert current(url) is None


@pytest.mark.postgres
def test_a_migration_does_not_wait_long_for_a_table_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes to the table later would wait with it."""
    monkeypatch.setattr(module, "_FOLDER", only_migration(tmp_path / "migrations", "LOCK TABLE used"))
    monkeypatch.setattr(module, "_LOCK_WAIT", "200ms")
    inside, leave = threading.Event(), threading.Event()

    def lock(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT count(*) FROM used"))
        inside.set()
        leave.wait(30)

    with server().empty() as url:
        server().execute("CREATE TABLE used (a INTEGER)", database=url.rsplit("/", 1)[1])
        user = threading.Thread(target=use, args=(url, lock))
        user.start()
        assert inside.wait(30)

        with pytest.raises(StoreError, match="busy"):
            migrate(url)
        leave.set()
        user.join()

        assert ["x"] == migrate(url)


def set_revision(url: str, revision: str) -> None:
    async def write() -> None:
        database = Database.open(url)
        advance = sa.text("UPDATE alembic_version SET version_num = :revision").bindparams(revision=revision)
        await database.transact(lambda connection: connection.execute(advance).close())
        await database.close()

    asyncio.run(write())


def test_a_newer_database_is_left_alone(url: str) -> None:
    migrate(url)
    set_revision(url, "9999")

    with pytest.raises(MigrationError, match="9999"):
        migrate(url)


def test_the_state_of_a_schema(url: str) -> None:
    states = [schema_state(url)]
    migrate(url)
    states.append(schema_state(url))
    set_revision(url, "0001")
    states.append(schema_state(url))

    assert ["missing", "current", "older"] == states


@pytest.mark.parametrize("revision", ["9999_for_0001", "9999_for_0002"])
def test_a_build_starts_beside_a_later_schema_that_serves_it(url: str, revision: str) -> None:
    migrate(url)
    set_revision(url, revision)

    assert "newer" == schema_state(url)


@pytest.mark.parametrize("revision", ["9999", "9999_for_0004", "9999_for_x", "elsewhere"])
def test_a_build_does_not_start_on_a_later_schema_that_does_not(url: str, revision: str) -> None:
    migrate(url)
    set_revision(url, revision)

    with pytest.raises(MigrationError, match=f"{revision}, which this build is too old for"):
        schema_state(url)


def test_every_revision_says_whom_it_serves() -> None:
    scripts = list(ScriptDirectory(str(module._FOLDER)).walk_revisions())

    assert ALL == sorted(script.revision for script in scripts)
    for script in scripts:
        assert re.fullmatch(r"0001|[0-9]{4}_for_[0-9]{4}", script.revision)
        assert Path(script.path).name.startswith(f"{script.revision[:4]}_")
