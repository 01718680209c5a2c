"""The one actor: it hands a run's uuid to the process and returns. It never raises and never touches the run.

dramatiq logs the text of an actor's exception and would mark the message as failed, so nothing may escape.
"""

from collections.abc import Callable

import dramatiq
import structlog
from dramatiq import Broker

from worker.ports.wakeups import ACTOR_NAME, QUEUE_NAME, is_run_uuid
from worker.queue.middleware import Tally

__all__ = ["declare_wake"]

_log = structlog.get_logger(__name__)


def declare_wake(broker: Broker, hand_off: Callable[[str], None], tally: Tally) -> dramatiq.Actor[[str], None]:
    """Declare the actor `wake` on `broker`.

    `hand_off` gets each canonical uuid, on one of dramatiq's threads, and must return at once: the entry point
    passes a function that does `loop.call_soon_threadsafe`. A uuid that it could not take is dropped; the row is
    due, so the sweeper finds it.
    """

    def wake(run: str) -> None:
        if not is_run_uuid(run):
            tally.add("not_a_uuid")
            return
        try:
            hand_off(run)
        except Exception as error:  # noqa: BLE001 - the outermost frame: dramatiq would log text and fail the message
            tally.add("not_taken")
            # Most often RuntimeError from an event loop that was closed while the worker drains.
            _log.warning("wakeup.not_taken", run_id=run, error=type(error).__name__)

    declare = dramatiq.actor(actor_name=ACTOR_NAME, queue_name=QUEUE_NAME, broker=broker)
    return declare(wake)
