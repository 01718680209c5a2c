"""The page on reliability names tests that are there and boundaries that are struck."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE))))
def test_every_test_of_the_page_is_there(named: tuple[str, str]) -> None:
    path, name = named
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_test_of_the_crash_folder_is_on_the_page() -> None:
    """A promise that is tested and not told is half a promise. A neighbour of one that is told may go without."""
    for path in sorted((ROOT / "tests" / "crash").glob("test_*.py")):
        assert f"`tests/crash/{path.name}::" in PAGE, path.name
