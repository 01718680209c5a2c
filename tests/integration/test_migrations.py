"""Migrations: they give the schema of the code, whole or not at all, however many processes run them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests.support.stores import claim, created, open_store
from worker.adapters.sql import migrate as module
from worker.adapters.sql.engine import Database
from worker.adapters.sql.migrate import MigrationError, current, head, migrate
from worker.adapters.sql.schema import metadata
from worker.ports.runs import StoreError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a folder with 100%' / 'runs.db'}"


@pytest.fixture(autouse=True)
def folder(url: str) -> None:
    Path(url.removeprefix("sqlite:///")).parent.mkdir()


def read(url: str, statement: str) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement))]


SCHEMA = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' AND name NOT LIKE 'sqlite%' ORDER BY name"


def test_a_new_database_is_brought_up_once(url: str) -> None:
    assert current(url) is None

    assert "0001" == migrate(url)[0]

    assert head() == current(url)
    assert [] == migrate(url)
    assert [(1, 1)] == read(url, "SELECT id, version FROM catalogue_version")
    assert [("data_class_enforcement", "enforce")] == read(url, "SELECT name, value FROM policy")


def test_the_file_is_its_owners_alone(url: str) -> None:
    migrate(url)

    assert 0o600 == Path(url.removeprefix("sqlite:///")).stat().st_mode & 0o777


def test_the_migrated_schema_is_that_of_the_code(url: str) -> None:
    migrate(url)

    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)

    assert [] == differences


async def test_the_migrated_schema_has_the_same_constraints(url: str, tmp_path: Path) -> None:
    """The comparison of alembic sees neither checks nor conditions of indexes; their text must be the same."""
    await asyncio.to_thread(migrate, url)
    created_url = f"sqlite:///{tmp_path / 'created.db'}"
    async with open_store(created_url):
        pass

    made, migrated = ({name: normal(sql) for name, sql in read(each, SCHEMA)} for each in (created_url, url))

    assert made == migrated


def normal(sql: str) -> list[str]:
    """Split DDL into its clauses: their order within a table means nothing."""
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
    assert ["['0001']", "[]", "[]", "[]"] == outputs


async def test_threads_that_migrate_at_once_apply_each_revision_once(url: str) -> None:
    applied = await asyncio.gather(*(asyncio.to_thread(migrate, url) for _ in range(3)))

    assert [[], [], ["0001"]] == sorted(applied)


def test_a_failed_migration_leaves_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text((module._FOLDER / "env.py").read_text())
    (folder / "versions" / "broken.py").write_text(
        "from alembic import op\n"
        "revision, down_revision, branch_labels, depends_on = 'x', None, None, None\n"
        "def upgrade():\n"
        "    op.execute('CREATE TABLE half (a INTEGER)')\n"
        "    op.execute('NONSENSE')\n"
    )
    monkeypatch.setattr(module, "_FOLDER", folder)

    with pytest.raises(StoreError):
        migrate(url)

    assert [] == read(url, SCHEMA)
    assert current(url) is None


async def test_a_newer_database_is_left_alone(url: str) -> None:
    await asyncio.to_thread(migrate, url)
    database = Database.open(url)

    def advance(connection: sa.Connection) -> None:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    await database.transact(advance)
    await database.close()

    with pytest.raises(MigrationError, match="9999"):
        await asyncio.to_thread(migrate, url)
