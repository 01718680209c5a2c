"""Databases of both engines for tests with processes, and how much of such tests is run."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.postgres import Server, server
from worker.adapters.sql.migrate import migrate

__all__ = ["ENGINES", "FULL", "cloned", "engine_url", "only_in_full"]

FULL: Final = os.environ.get("REGATE_TEST_CRASH") == "full"
"""Whether everything is run, and not only a sample of it."""
ENGINES: Final = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


def only_in_full(*values: object) -> object:
    """Make parameters of a test that the sample leaves out."""
    return pytest.param(*values, marks=pytest.mark.skipif(not FULL, reason="only with REGATE_TEST_CRASH=full"))


@asynccontextmanager
async def cloned(of: Server) -> AsyncIterator[str]:
    """Give the URL of a new database of a server, with its schema."""
    with ExitStack() as stack:
        url = await asyncio.to_thread(lambda: stack.enter_context(of.clone()))
        try:
            yield url
        finally:
            await asyncio.to_thread(stack.close)


@asynccontextmanager
async def engine_url(engine: str, folder: Path, template: Path | None = None) -> AsyncIterator[str]:
    """Give the URL of a new database with its schema; on SQLite a copy of a template that is made when needed."""
    if engine == "postgresql":
        async with cloned(server()) as url:
            yield url
        return
    made = folder / "regate.db"
    await asyncio.to_thread(_make, made, template)
    yield f"sqlite:///{made}"


def _make(made: Path, template: Path | None) -> None:
    if template is None or not template.exists():
        migrate(f"sqlite:///{template or made}")
    if template is not None:
        shutil.copyfile(template, made)
