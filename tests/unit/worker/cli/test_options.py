"""What people write on the command line."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click
import pytest

from worker.cli.options import AGE, RUN, SINCE, Asked, flag_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("30m", 1800), ("1d", 86_400), ("1h30m", 5400), ("1.5s", 1.5)]
)
def test_a_length_is_so_long_ago(text: str, seconds: float) -> None:
    """From now."""
    found = SINCE.convert(text, None, None)
    assert abs(time.time() - seconds - found) < 5


def test_a_time_is_iso() -> None:
    """With a zone as it says, without one in the reader's."""
    expected = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
    assert expected == SINCE.convert("2026-03-01T12:00:00Z", None, None)
    assert expected == SINCE.convert("2026-03-01T13:00+01:00", None, None)
    local = datetime(2026, 3, 1).astimezone().timestamp()
    assert local == SINCE.convert("2026-03-01", None, None)


@pytest.mark.parametrize("text", ["", "soon", "2x", "h", "-1h", "2026-13-01", "9999999999999d x"])
def test_anything_else_is_wrong_usage(text: str) -> None:
    """Without repeating it."""
    with pytest.raises(click.BadParameter) as caught:
        SINCE.convert(text, None, None)
    assert len(text) < 3 or text not in caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90min", 5400), ("1.5h", 5400), (" 30d ", 2_592_000), ("600s", 600)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """In seconds."""
    assert seconds == AGE.convert(text, None, None)


@pytest.mark.parametrize("text", ["", "5m", "1w", "d", "7", "-1d", "1d2h", "1e3s", "١d"])
def test_an_age_is_not_guessed(text: str) -> None:
    """What is destroyed by it is meant."""
    with pytest.raises(click.BadParameter, match="600s, 90min, 12h or 30d"):
        AGE.convert(text, None, None)


@pytest.mark.parametrize(
    "text", ["", "x", "0b5c8a2e5f0e4c8b9d5b8f3f6a0f1e11", "{0b5c8a2e-5f0e-4c8b-9d5b-8f3f6a0f1e11}"]
)
def test_a_uuid_is_spelled_as_ours(text: str) -> None:
    """Anything else is none."""
    with pytest.raises(click.BadParameter):
        RUN.convert(text, None, None)


def test_a_uuid_may_be_shouted() -> None:
    """Case is not a difference."""
    uuid = "0b5c8a2e-5f0e-4c8b-9d5b-8f3f6a0f1e11"
    assert uuid == RUN.convert(uuid.upper(), None, None)


def test_flags_are_named_like_settings() -> None:
    """And give settings."""
    assert "--data-dir" == flag_of("REGATE_DATA_DIR")
    asked = Asked(json=False, acts_as=None, flags={}).with_flag("REGATE_MAX_RUNS", "7")
    assert (7, "flag") == (asked.settings().max_runs, asked.settings().sources["REGATE_MAX_RUNS"])
