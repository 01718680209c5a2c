"""Our dramatiq middleware: it tells the process when the worker boots, drains and has stopped. It decides nothing.

dramatiq logs a middleware that raises and goes on, so whatever must hold (a gate, a lease) can never live here.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock

from dramatiq import Broker, Worker
from dramatiq.middleware import Middleware

__all__ = ["DrainMiddleware", "LifecycleMiddleware", "Tally", "WorkerHooks"]


def _nothing() -> None:
    return None


def _no_count(reason: str, count: int) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHooks:
    """What the process wants to hear of its worker. Called on dramatiq's threads; must be quick and must not raise.

    Shape: `booted` once the worker's threads run; `draining` once intake has ended, before the threads are
    stopped; `stopped` when all of them are gone; `counted(reason, n)` for every message that did not become a
    hand-off (reasons: see `Tally`); `lost(error)` when the broker is away, with the class of what failed, and
    `regained` when it is back, once for each change.
    """

    booted: Callable[[], None] = _nothing
    draining: Callable[[], None] = _nothing
    stopped: Callable[[], None] = _nothing
    counted: Callable[[str, int], None] = _no_count
    lost: Callable[[str], None] = lambda error: None
    regained: Callable[[], None] = _nothing


class Tally:
    """Counts, by reason, of messages that did not become a hand-off. Safe on any thread.

    Reasons: `undecodable`, `too_long`, `wrong_address`, `unknown_actor`, `wrong_arguments` and `unknown_option`
    (set aside), `missing` (an id without a message), `not_a_uuid` and `not_taken` (dropped by the actor).
    """

    def __init__(self, counted: Callable[[str, int], None]) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._counted = counted

    def add(self, reason: str, count: int = 1) -> None:
        """Count `count` more messages and tell the hook."""
        with self._lock:
            self._counts[reason] += count
        self._counted(reason, count)

    def counts(self) -> dict[str, int]:
        """Return all counts since the process began."""
        with self._lock:
            return dict(self._counts)


class LifecycleMiddleware(Middleware):
    """Tells the hooks of the worker's beginning and end."""

    def __init__(self, hooks: WorkerHooks) -> None:
        self._hooks = hooks

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Report that the threads run."""
        self._hooks.booted()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Report that the threads are gone and what they had not handled is back in the queue."""
        self._hooks.stopped()


class DrainMiddleware(Middleware):
    """Ends intake when the worker shuts down. Last in the list, so that all others have heard of it before.

    dramatiq stops its worker threads first and its consumers after them; in between, without this, consumers go
    on taking wake-ups that other processes could handle.
    """

    def __init__(self, draining: Event, hooks: WorkerHooks) -> None:
        self._draining = draining
        self._hooks = hooks

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Open intake, also for a worker that follows another on the same broker."""
        self._draining.clear()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Close intake and report it."""
        self._draining.set()
        self._hooks.draining()
