"""How the age of a permit reaches the adapter that acts on it: a check that travels with the task.

Between the runtime's own check and the moment at which something leaves this process there may be a queue for a thread,
a slow resolver or a handshake. Whoever performs asks again right before the point of no return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["in_time", "performing"]


def _always() -> bool:
    return True


_check: Final[ContextVar[Callable[[], bool]]] = ContextVar("permit_in_time", default=_always)


@contextmanager
def performing(check: Callable[[], bool]) -> Iterator[None]:
    """Perform under a permit; `check` says whether it may still be acted on. Threads of the task inherit it."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def in_time() -> bool:
    """Whether the permit that this task performs may still be acted on; always, outside of any."""
    return _check.get()()
