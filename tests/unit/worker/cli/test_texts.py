"""Words for people."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.cli.texts import ago, harmless, in_words, moment, plural


@given(st.text())
def test_no_control_survives(text: str) -> None:
    """Law: what comes out moves no cursor and turns no direction, and can be written as UTF-8."""
    shown = harmless(text)
    assert all(unicodedata.category(c) not in ("Cc", "Zl", "Zp") or c in "\t\n" for c in shown)
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", shown)
    assert shown == harmless(shown)
    shown.encode()


@pytest.mark.parametrize("text", ["", "plain", "größer\n\tzwei", "👩\u200d💻 e\u0301", "[bold]x[/]", "a\\b"])
def test_plain_text_stays(text: str) -> None:
    """Letters, emoji and what looks like markup are left alone."""
    assert text == harmless(text)


def test_escapes_become_visible() -> None:
    """A reader sees that there was something."""
    assert "␛[2J␍\\u202e␡" == harmless("\x1b[2J\r\u202e\x7f")


@pytest.mark.parametrize(
    ("at", "told"),
    [(1000.0, "now"), (940.0, "1 min ago"), (999.0, "1 s ago"), (1000 + 7300, "in 2 h"), (1000 - 200_000, "2 d ago")],
)
def test_times_are_told_in_their_largest_unit(at: float, told: str) -> None:
    """Both ways from now."""
    assert told == ago(at, 1000.0)


def test_a_moment_is_told_both_ways() -> None:
    """Absolute, and relative."""
    assert re.fullmatch(r"1970-01-0[12] \d\d:\d\d:\d\d \(\d+ d ago\)", moment(3600.0))


def test_lengths_and_counts() -> None:
    """In words."""
    assert ("0 s", "59 s", "1 min") == (in_words(0.5), in_words(59.9), in_words(60))
    assert ("1 run", "0 runs", "2 entries") == (plural(1, "run"), plural(0, "run"), plural(2, "entry", "entries"))
