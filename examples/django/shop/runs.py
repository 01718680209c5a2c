"""The runtime of this process."""

from __future__ import annotations

from functools import cache
from threading import Lock

from worker import BlockingRuntime, open_blocking_runtime

_opening = Lock()


def regate() -> BlockingRuntime:
    """Give it, opened by the first request: a server that forks has done so by then."""
    with _opening:
        return _opened()


@cache
def _opened() -> BlockingRuntime:
    return open_blocking_runtime()
