"""The broker and the worker of this process: dramatiq's, without the parts that would make Redis matter.

No retries, results, callbacks, pipelines, time limits, dead letters or delays: a message is only a wake-up, and
whatever it misses, the sweeper finds. Nothing here reads a run.
"""

from collections.abc import Callable
from threading import Event
from typing import Final

import redis
from dramatiq import Worker
from dramatiq.broker import Consumer
from dramatiq.brokers.redis import RedisBroker
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.ports.wakeups import NAMESPACE
from worker.queue.actors import declare_wake
from worker.queue.consumer import TAKE_SCRIPT, Intake, WakeConsumer
from worker.queue.middleware import DrainMiddleware, LifecycleMiddleware, Tally, WorkerHooks

__all__ = ["RegateBroker", "RunningWorker", "make_broker", "run_worker"]

#: Seconds. Above the longest blocking read by far, below what an operator would take for a hang.
_SOCKET_SECONDS: Final = 5.0


class RegateBroker(RedisBroker):
    """dramatiq's Redis broker with our consumer, our middleware and no delay queue. Made by `make_broker`.

    Attributes: `tally` counts what did not become a hand-off; `draining` is set while intake is closed.
    """

    def __init__(self, url: str, hooks: WorkerHooks) -> None:
        client = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=_SOCKET_SECONDS,
            socket_connect_timeout=_SOCKET_SECONDS,
            # A blocking pop that is repeated after its answer was lost would take a second id; we pause ourselves.
            retry=Retry(NoBackoff(), 0),
        )
        # An operator's URL may ask for text; we and dramatiq need bytes.
        client.connection_pool.connection_kwargs["decode_responses"] = False
        self.hooks = hooks
        self.tally = Tally(hooks.counted)
        self.draining = Event()
        middleware = [LifecycleMiddleware(hooks), DrainMiddleware(self.draining, hooks)]
        super().__init__(client=client, middleware=middleware, namespace=NAMESPACE)  # type: ignore[no-untyped-call]
        self._intake = Intake(
            client=client,
            take=client.register_script(TAKE_SCRIPT),
            actors=self.actors,
            draining=self.draining,
            tally=self.tally,
            hooks=hooks,
        )

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Make the consumer of a queue. Units: `timeout` is the milliseconds that it waits for a message."""
        return WakeConsumer(self._intake, queue_name=queue_name, prefetch=prefetch, block_s=timeout / 1000)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue without the delay queue that dramatiq adds: nothing is ever delayed, and it is polled."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def close(self) -> None:
        """Close the connections. The worker has to be stopped before."""
        self.client.close()


def make_broker(url: str, hand_off: Callable[[str], None] | None, *, hooks: WorkerHooks | None = None) -> RegateBroker:
    """Make the broker of this process, with the actor `wake` if `hand_off` is given. Opens no connection yet.

    `url` is `redis://`, `rediss://` or `unix://`. `hand_off` takes a run's uuid on any thread and returns at once.
    Errors: ValueError for any other URL.
    """
    broker = RegateBroker(url, hooks or WorkerHooks())
    if hand_off is not None:
        declare_wake(broker, hand_off, broker.tally)
    return broker


class RunningWorker:
    """A dramatiq worker that runs in this process, on threads of its own, until it is stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._stopped = False

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End intake, give back what was not handled, join the threads. Blocks; repeating it does nothing.

        It takes about a tenth of a second; up to one more while Redis is away, and `timeout_s` at most for a
        thread that hangs in `hand_off`.
        """
        if not self._stopped:
            self._stopped = True
            self._worker.stop(timeout=int(timeout_s * 1000))


def run_worker(broker: RegateBroker, *, threads: int = 2, prefetch: int = 128, idle_ms: int = 100) -> RunningWorker:
    """Start a worker; returns at once, also while Redis is away: it connects, and reconnects, by itself.

    Units: `threads` call `hand_off`; `prefetch` wake-ups are taken at a time (64 to 256: fewer cost round trips,
    more wait in one process while others idle); `idle_ms` bounds how long an idle thread takes to notice `stop`.
    Errors: ValueError when the broker was made without `hand_off`.
    """
    if not broker.actors:
        raise ValueError("a worker needs a broker that was made with hand_off")
    worker = Worker(broker, worker_threads=threads, worker_timeout=idle_ms)
    # dramatiq takes this one from the environment, at import, for the whole process; `start` reads the attribute.
    worker.queue_prefetch = prefetch
    worker.start()
    return RunningWorker(worker)
