"""Sends wake-ups through Redis. Redis may be away: a run that is due is found by the sweeper, only later.

It writes what dramatiq's broker would write, without importing dramatiq: a front end enqueues with a Redis client
alone. Nothing here raises for an unreachable Redis, and nothing logs what was sent.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from worker.ports.wakeups import MESSAGES_KEY, QUEUE_KEY, encode_wakeup

__all__ = ["BrokerHealth", "RedisSignals"]

T = TypeVar("T")

#: Seconds. A Redis nearby connects in milliseconds; whoever enqueues should not wait for one that is away.
_CONNECT_SECONDS: Final = 0.5
_TOTAL_SECONDS: Final = 1.0

#: A list that nobody makes.
_PROBE_KEY: Final = f"{QUEUE_KEY}.probe"

#: Wake-ups a transaction: about 300 KiB, a few milliseconds during which Redis serves nobody else.
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """What `regate doctor` says about Redis.

    Shape: `error` is the class of what failed, None when it answered; `refusal` that of what it says to a write, None
    when it takes it; `policy` is its `maxmemory-policy`, None when it would not tell; `waiting` counts the wake-ups in
    the queue.
    """

    reachable: bool
    error: str | None = None
    refusal: str | None = None
    policy: str | None = None
    waiting: int | None = None

    @property
    def evicts(self) -> bool:
        """True when it answers and may drop the queue when memory is short, as by any other policy."""
        return self.reachable and self.policy != "noeviction"


class RedisSignals:
    """Wakes workers. Belongs to the event loop on which it is first used and has to be closed on it."""

    def __init__(self, url: str) -> None:
        """Remember where Redis is; connects when first used. Errors: ValueError for a URL that is not Redis'."""
        self._client = Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_TOTAL_SECONDS,
            # Once, at once: a pooled connection may have died unnoticed. Repeated wake-ups do no harm.
            retry=Retry(NoBackoff(), 1),
        )
        self._asking: set[asyncio.Task[Any]] = set()

    async def wake(self, uuids: Sequence[str]) -> bool:
        """Enqueue one wake-up for each run, in this order; True when Redis has taken all of them.

        Returns False within a second when it is not there; some may have been taken all the same.
        Errors: ValueError, with nothing sent, when one is not a canonical uuid.
        """
        now_ms = int(time.time() * 1000)
        bodies: dict[str, bytes] = {}
        for run in uuids:
            redis_id = str(uuid4())
            bodies[redis_id] = encode_wakeup(run, message_id=str(uuid4()), redis_id=redis_id, timestamp_ms=now_ms)
        try:
            await self._ask(self._send(bodies))
        except (RedisError, OSError):  # TimeoutError is an OSError
            return False
        return True

    async def _ask(self, asking: Coroutine[Any, Any, T]) -> T:
        """Do it within a second, in a task of its own. Errors: `TimeoutError`, and its own.

        redis-py sends under `asyncio.wait_for`, which swallows a cancel on Python 3.11: whoever was told to end while
        sending would go on for ever.
        """
        task = asyncio.ensure_future(asking)
        self._asking.add(task)
        task.add_done_callback(self._asked)
        try:
            done, _ = await asyncio.wait([task], timeout=_TOTAL_SECONDS)
        finally:
            task.cancel()
        if not done:
            raise TimeoutError
        return task.result()

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # it may be that nobody waits for it any more

    async def _send(self, bodies: dict[str, bytes]) -> None:
        ids = list(bodies)
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            # One transaction, the hash first: a worker must not see an id whose message is not there.
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hset(MESSAGES_KEY, mapping={redis_id: bodies[redis_id] for redis_id in batch})
                pipeline.rpush(QUEUE_KEY, *batch)
                await pipeline.execute()

    async def ping(self) -> BrokerHealth:
        """Ask Redis how it is, within a second. Never raises for what Redis does."""
        try:
            return await self._ask(self._health())
        except (RedisError, OSError) as error:
            return BrokerHealth(reachable=False, error=type(error).__name__)

    async def _health(self) -> BrokerHealth:
        waiting = await self._client.llen(QUEUE_KEY)
        # INFO, not CONFIG GET: hosted servers often forbid the latter.
        memory = await self._client.info("memory")
        policy = memory.get("maxmemory_policy")
        refusal = await self._refusal()
        return BrokerHealth(reachable=True, refusal=refusal, policy=policy and str(policy), waiting=waiting)

    async def _refusal(self) -> str | None:
        """Write nothing, and see whether Redis would take it: full, a replica, or unable to save, it would not."""
        try:
            await self._client.rpushx(_PROBE_KEY, "")  # only a list that is there grows
        except NoPermissionError:
            return None  # it may allow just what a wake-up needs
        except ResponseError as error:
            return type(error).__name__
        return None

    async def close(self) -> None:
        """Close the connections."""
        if self._asking:
            await asyncio.wait(self._asking)
        await self._client.aclose()
