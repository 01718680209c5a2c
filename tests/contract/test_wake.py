"""Our wake-up message against the installed dramatiq: its encoder, its decoder and its stock broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from worker.adapters.embedded_valkey import EmbeddedValkey
from worker.adapters.redis_signals import RedisSignals
from worker.ports.wakeups import (
    ACTOR_NAME,
    MESSAGE_LIMIT_BYTES,
    MESSAGES_KEY,
    NAMESPACE,
    QUEUE_KEY,
    QUEUE_NAME,
    encode_wakeup,
    is_run_uuid,
)

RUN = "0b5c8a2e-5f0e-4c8b-9d5b-8f3f6a0f1e11"
MESSAGE_ID = "6f1c1f8e-3c55-4f0a-8a58-3d8f5e0a9b01"
REDIS_ID = "a3f0d0de-77f4-4d4f-9a7e-1b6c9be0d202"
NOW_MS = 1_796_000_000_000


def _ours() -> bytes:
    return encode_wakeup(RUN, message_id=MESSAGE_ID, redis_id=REDIS_ID, timestamp_ms=NOW_MS)


def _dramatiqs() -> Message[None]:
    return Message(
        queue_name=QUEUE_NAME,
        actor_name=ACTOR_NAME,
        args=(RUN,),
        kwargs={},
        options={"redis_message_id": REDIS_ID},
        message_id=MESSAGE_ID,
        message_timestamp=NOW_MS,
    )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with EmbeddedValkey(tmp_path) as valkey:
        yield valkey.url


def test_bytes_are_those_of_dramatiqs_encoder() -> None:
    """The message is byte for byte what dramatiq would have written."""
    assert _dramatiqs().encode() == _ours()


def test_dramatiqs_decoder_reads_it_back() -> None:
    """dramatiq decodes the message to the same fields."""
    assert _dramatiqs() == Message.decode(_ours())


def test_a_wakeup_is_well_below_the_limit() -> None:
    """A quarter of what a consumer accepts, so that a new option of dramatiq's does not cross it."""
    assert len(_ours()) <= MESSAGE_LIMIT_BYTES / 3


@pytest.mark.parametrize("text", ["", "x", RUN.upper(), RUN.replace("-", ""), f"{RUN}\n", f"{{{RUN}}}", RUN[:-1] + "é"])
def test_only_a_canonical_uuid_becomes_a_message(text: str) -> None:
    """Anything else is refused without repeating it."""
    assert not is_run_uuid(text)
    with pytest.raises(ValueError, match=r"^a wake-up carries the canonical uuid of a run$"):
        encode_wakeup(text, message_id=MESSAGE_ID, redis_id=REDIS_ID, timestamp_ms=NOW_MS)


async def test_dramatiqs_stock_broker_takes_what_we_send(url: str) -> None:
    """A worker with the unchanged Redis broker would get our wake-up."""
    signals = RedisSignals(url)
    assert await signals.wake([RUN])
    await signals.close()
    broker = RedisBroker(url=url, middleware=[], namespace=NAMESPACE)  # type: ignore[no-untyped-call]
    broker.declare_queue(QUEUE_NAME)
    message = next(iter(broker.consume(QUEUE_NAME, prefetch=1, timeout=100)))
    broker.client.close()
    assert message is not None
    assert (ACTOR_NAME, (RUN,)) == (message.actor_name, message.args)


def test_our_keys_are_where_dramatiqs_broker_writes(url: str) -> None:
    """What dramatiq enqueues by itself is found under our two keys, with the same fields."""
    broker = RedisBroker(url=url, middleware=[], namespace=NAMESPACE)  # type: ignore[no-untyped-call]
    broker.declare_queue(QUEUE_NAME)
    broker.enqueue(_dramatiqs())
    broker.client.close()
    with redis.Redis.from_url(url) as client:
        ids = client.lrange(QUEUE_KEY, 0, -1)
        bodies = client.hgetall(MESSAGES_KEY)
    assert ids == list(bodies)
    (body,) = bodies.values()
    assert list(json.loads(_ours())) == list(json.loads(body))
    assert ids[0].decode() == json.loads(body)["options"]["redis_message_id"]
