"""What a test's installations stand on: SQLite files, or databases of a real PostgreSQL.

Modules marked `engines` run on both. All of their tests run on SQLite; on PostgreSQL a third does, picked by name, and
all do where the module says `engines("all")` or `REGATE_TEST_ENGINES=all` is set.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.postgres import server

__all__ = ["PARAMETERS", "chosen_url", "is_left_out", "stand_on"]

PARAMETERS: Final = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))
_ONE_OF: Final = 3
_PLACES: dict[Path, str] | None = None
_STACK = ExitStack()


@contextmanager
def stand_on(engine: str) -> Iterator[None]:
    """Let every installation that is opened in the block stand on an engine; its databases are gone afterwards."""
    global _PLACES, _STACK  # noqa: PLW0603 - one test at a time in a process
    if engine == "sqlite":
        yield
        return
    with ExitStack() as stack:
        _PLACES, _STACK = {}, stack
        try:
            yield
        finally:
            _PLACES = None


def chosen_url(folder: Path) -> str | None:
    """Give the URL of the database that belongs to a folder, with its schema; None = SQLite in the folder itself."""
    if _PLACES is None:
        return None
    if folder not in _PLACES:
        _PLACES[folder] = _STACK.enter_context(server().clone())
    return _PLACES[folder]


def is_left_out(item: pytest.Item) -> bool:
    """Tell whether a test is one of those that run on SQLite alone unless everything is asked for."""
    marker = item.get_closest_marker("engines")
    variant = getattr(item, "callspec", None)
    if marker is None or variant is None or variant.params.get("engine") != "postgresql":
        return False
    everything = "all" in marker.args or os.environ.get("REGATE_TEST_ENGINES") == "all"
    return not everything and zlib.crc32(item.name.encode()) % _ONE_OF != 0
