"""The consumer: takes wake-ups out of Redis, sets garbage aside, keeps outages to itself.

dramatiq's own consumer stops for three seconds and strands what it had fetched when one message cannot be decoded,
loses a worker thread to a message that names another queue, and reports an outage every three seconds. Ours checks
a message before dramatiq sees it, and yields nothing while Redis is away.

A message is taken for good when it is fetched: none is acknowledged afterwards, and a process that is killed loses
the wake-ups that it had fetched (they live milliseconds). That costs one sweep, since the runs are still due in the
database; dramatiq's redelivery would take more than a minute. Redis is never the record of anything.
"""

import random
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import redis
import structlog
from dramatiq import DramatiqError, Message, MessageProxy
from dramatiq.broker import Consumer
from redis.commands.core import Script

from worker.ports.wakeups import (
    MESSAGE_LIMIT_BYTES,
    MESSAGES_KEY,
    QUEUE_KEY,
    REDIS_ID_OPTION,
    SET_ASIDE_KEY,
    SET_ASIDE_LIMIT,
    is_run_uuid,
)
from worker.queue.middleware import Tally, WorkerHooks

__all__ = ["TAKE_SCRIPT", "Intake", "WakeConsumer"]

_log = structlog.get_logger(__name__)

#: Seconds between attempts while Redis is away: doubling, jittered, so that a fleet does not come back at once.
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 1.0

#: Seconds that a consumer which may not fetch waits before it looks again.
_FULL_PAUSE_SECONDS: Final = 0.005

# Takes the message of one id that was popped and of up to ARGV[2] more. Both keys are dramatiq's. A body is cut just
# above the limit, so that a huge one neither travels nor is kept; an empty one stands for an id without a message.
TAKE_SCRIPT: Final = """
local ids = {ARGV[1]}
for i = 1, tonumber(ARGV[2]) do
  local id = redis.call('lpop', KEYS[1])
  if not id then break end
  ids[#ids + 1] = id
end
local taken = {}
for i, id in ipairs(ids) do
  local body = redis.call('hget', KEYS[2], id)
  redis.call('hdel', KEYS[2], id)
  taken[#taken + 1] = id
  taken[#taken + 1] = body and string.sub(body, 1, tonumber(ARGV[3])) or ''
end
return taken
"""


def _refusal(message: Message[None], redis_id: bytes, queue_name: str, actors: Collection[str]) -> str | None:
    """Say why dramatiq must not see this message, in one of the words of `Tally`; None when it may."""
    fields: dict[str, Any] = message.asdict()  # whatever was in the bytes: decoding checks no types
    args = fields["args"]
    if not isinstance(fields["message_id"], str) or not isinstance(fields["actor_name"], str):
        return "undecodable"
    if fields["queue_name"] != queue_name:
        return "wrong_address"
    if fields["actor_name"] not in actors:
        return "unknown_actor"
    if len(args) != 1 or not isinstance(args[0], str) or fields["kwargs"] != {}:
        return "wrong_arguments"
    if fields["options"] != {REDIS_ID_OPTION: redis_id.decode("ascii", "replace")}:
        return "unknown_option"
    return None if is_run_uuid(args[0]) else "not_a_uuid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What a consumer shares with its broker. `actors` are the names that may be addressed."""

    client: redis.Redis
    take: Script
    actors: Collection[str]
    draining: Event
    tally: Tally
    hooks: WorkerHooks


class WakeConsumer(Consumer):
    """Yields wake-ups that dramatiq can handle without failing. Nothing but a bug of ours raises out of it."""

    def __init__(self, intake: Intake, *, queue_name: str, prefetch: int, block_s: float) -> None:
        self._intake = intake
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._block_s = block_s
        self._ready: deque[Message[None]] = deque()
        # Handed to dramatiq and not yet done. Worker threads discard, the consumer's adds; both are atomic.
        self._open: set[str] = set()
        self._failures = 0
        self._up: bool | None = None

    def __next__(self) -> MessageProxy | None:
        room = self._prefetch - len(self._open)
        if self._intake.draining.is_set() or room <= 0:
            time.sleep(_FULL_PAUSE_SECONDS)
            return None
        if not self._ready:
            try:
                self._fetch(room)
            except (redis.RedisError, OSError) as error:
                self._note_lost(error)
                return None
            self._note_up()
        if not self._ready:
            return None
        message = self._ready.popleft()
        self._open.add(message.options[REDIS_ID_OPTION])
        return MessageProxy(message)

    def _fetch(self, room: int) -> None:
        # Blocks in Redis, not in a polling loop: a wake-up arrives in about a millisecond, and idling costs little.
        popped = self._intake.client.blpop([QUEUE_KEY], timeout=self._block_s)
        if popped is None:
            return
        taken = self._intake.take(keys=[QUEUE_KEY, MESSAGES_KEY], args=[popped[1], room - 1, MESSAGE_LIMIT_BYTES + 1])
        garbage: list[bytes] = []
        for redis_id, body in zip(taken[::2], taken[1::2], strict=True):
            reason = self._admit(redis_id, body)
            if reason is not None:
                self._intake.tally.add(reason)
                garbage.extend([body] if body else [])
        if garbage:
            # A Redis that is full refuses to keep it; it was counted, and the good ones must not wait for it.
            with suppress(redis.ResponseError), self._intake.client.pipeline() as pipeline:
                pipeline.lpush(SET_ASIDE_KEY, *garbage)
                pipeline.ltrim(SET_ASIDE_KEY, 0, SET_ASIDE_LIMIT - 1)
                pipeline.execute()

    def _admit(self, redis_id: bytes, body: bytes) -> str | None:
        """Make one message ready, or say why it is refused."""
        if not body:
            return "missing"
        if len(body) > MESSAGE_LIMIT_BYTES:
            return "too_long"
        try:
            message: Message[None] = Message.decode(body)
        except DramatiqError:
            return "undecodable"
        reason = _refusal(message, redis_id, self._queue_name, self._intake.actors)
        if reason is None:
            self._ready.append(message)
        return reason

    def _note_lost(self, error: Exception) -> None:
        if self._up is not False:
            self._up = False
            self._intake.hooks.lost(type(error).__name__)  # the class only: a text may repeat an address and password
        pause = min(_LAST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 10))
        self._failures += 1
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads a fleet, guards nothing

    def _note_up(self) -> None:
        if self._up is False:
            self._intake.hooks.regained()
        self._up, self._failures = True, 0

    def ack(self, message: MessageProxy) -> None:
        """Make room for another; in Redis the message is gone since it was fetched."""
        self._open.discard(message.options[REDIS_ID_OPTION])

    def nack(self, message: MessageProxy) -> None:
        """Do as `ack`: there are no dead letters, a run that is still due is woken again by the sweeper."""
        self.ack(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give back, at the end of the worker, what was not handled. What Redis cannot take is left to the sweeper."""
        self._give_back([message._message for message in messages])

    def close(self) -> None:
        """Give back what was fetched and never yielded."""
        messages = list(self._ready)
        self._ready.clear()
        self._give_back(messages)

    def _give_back(self, messages: list[Message[None]]) -> None:
        if not messages:
            return
        bodies = {message.options[REDIS_ID_OPTION]: message.encode() for message in messages}
        try:
            with self._intake.client.pipeline() as pipeline:
                pipeline.hset(MESSAGES_KEY, mapping=bodies)
                pipeline.rpush(QUEUE_KEY, *bodies)
                pipeline.execute()
        except (redis.RedisError, OSError) as error:
            _log.warning("wakeups.not_given_back", count=len(bodies), error=type(error).__name__)
