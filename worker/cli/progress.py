"""How far a long work is, for the person who waits for it: lines on stderr, and none for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import click

__all__ = ["Progress"]

_EVERY_S: Final = 1.0
"""Seconds between two lines: soon enough to see that it goes on."""


class Progress:
    """Called with how many are done and of how many. A line a second at most, the first at once, the last in any case.

    `what` stands before the numbers, as in `purged 12,000 of 50,000`.
    """

    def __init__(self, what: str, *, silent: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._silent = silent
        self._monotonic = monotonic
        self._next_at = -math.inf

    def __call__(self, done: int, total: int) -> None:
        """Tell it, unless a line was written just now."""
        now = self._monotonic()
        if self._silent or (now < self._next_at and done < total):
            return
        self._next_at = now + _EVERY_S
        click.echo(f"{self._what} {done:,} of {total:,}", err=True)
