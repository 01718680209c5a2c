"""Logging: our events with their fields, and of libraries only where they spoke."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from worker.telemetry import configure, quiet


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_events_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A name, a time, flat fields."""
    configure(as_json=True)("run.claimed", {"run": "u"})
    line = json.loads(capsys.readouterr().err)
    assert ("run.claimed", "u") == (line["event"], line["run"])
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_library_tells_no_content(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """Neither message, nor arguments, nor the text of an exception: only the place and the error's class."""
    configure(as_json=as_json)
    try:
        raise ValueError("marker-of-a-cause")
    except ValueError:
        logging.getLogger("some.library").exception("marker %s", "marker-of-an-argument")
    logging.getLogger("some.library").info("marker-of-a-detail")
    told = capsys.readouterr().err
    assert "some.library" in told
    assert "ValueError" in told
    assert "marker" not in told
    assert "Traceback" not in told


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """For commands whose stderr holds one line at most."""
    quiet("anything", {"at": "all"})
    assert ("", "") == capsys.readouterr()
