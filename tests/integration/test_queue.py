"""Wake-ups from end to end: sent, taken, handed over; garbage, duplicates and outages in between. A real Valkey."""

import asyncio
import json
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from worker.adapters.embedded_valkey import EmbeddedValkey
from worker.adapters.redis_signals import RedisSignals
from worker.ports.wakeups import (
    MESSAGE_LIMIT_BYTES,
    MESSAGES_KEY,
    QUEUE_KEY,
    SET_ASIDE_KEY,
    SET_ASIDE_LIMIT,
    encode_wakeup,
)
from worker.queue.broker import RegateBroker, make_broker, run_worker
from worker.queue.middleware import WorkerHooks


class Handed:
    """What arrived at hand_off, and when."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: list[str] = []

    def __call__(self, run: str) -> None:
        with self._changed:
            self._runs.append(run)
            self._changed.notify_all()

    def wait_for(self, count: int, *, seconds: float = 20) -> list[str]:
        """Wait until `count` have arrived and return all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._runs) >= count, seconds), "hand-offs are missing"
            return list(self._runs)


@contextmanager
def working(url: str, hand_off: Callable[[str], None], *, hooks: WorkerHooks | None = None) -> Iterator[RegateBroker]:
    broker = make_broker(url, hand_off, hooks=hooks)
    worker = run_worker(broker, threads=2)
    try:
        yield broker
    finally:
        worker.stop()
        broker.close()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path) as server:
        yield server


@pytest.fixture
def client(valkey: EmbeddedValkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url) as opened:
        yield opened


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


async def send(url: str, *runs: str) -> bool:
    signals = RedisSignals(url)
    try:
        return await signals.wake(runs)
    finally:
        await signals.close()


def good(run: str, redis_id: str) -> bytes:
    return encode_wakeup(run, message_id=str(uuid4()), redis_id=redis_id, timestamp_ms=1)


def put(client: redis.Redis, redis_id: str, body: bytes | None) -> None:
    if body is not None:
        client.hset(MESSAGES_KEY, redis_id, body)
    client.rpush(QUEUE_KEY, redis_id)


RUN = "0b5c8a2e-5f0e-4c8b-9d5b-8f3f6a0f1e11"


def change(**fields: object) -> Callable[[bytes], bytes]:
    """Return what replaces these fields of a message."""
    return lambda body: json.dumps(json.loads(body) | fields).encode()


def option(**options: object) -> Callable[[bytes], bytes]:
    """Return what adds these options to a message, or replaces them."""
    return lambda body: change(options=json.loads(body)["options"] | options)(body)


#: Reason → how a good message is spoilt.
GARBAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "undecodable: binary": lambda body: b"\xff\xfe\x00garbage",
    "undecodable: a pickle": lambda body: b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94.",
    "undecodable: cut": lambda body: body[:-5],
    "undecodable: not an object": lambda body: b"[1,2,3]",
    "undecodable: deep": lambda body: b"[" * 500 + b"]" * 500,
    "undecodable: unknown field": change(more=1),
    "undecodable: args": change(args=7),
    "undecodable: message id": change(message_id=["unhashable"]),
    "undecodable: actor": change(actor_name=["unhashable"]),
    "unknown_actor": change(actor_name="sleep"),
    "wrong_address": change(queue_name="other"),
    "wrong_address: delayed": change(queue_name="regate.DQ"),
    "wrong_address: a list": change(queue_name=["regate"]),
    "wrong_arguments: two": change(args=[RUN, "more"]),
    "wrong_arguments: none": change(args=[]),
    "wrong_arguments: a number": change(args=[7]),
    "wrong_arguments: named": change(kwargs={"run": 1}),
    "wrong_arguments: kwargs": change(kwargs=[]),
    "unknown_option: eta": option(eta=99999999999999),
    "unknown_option: pipe": option(pipe_target={}),
    "unknown_option: another's id": option(redis_message_id="1"),
    "unknown_option: no object": change(options=3),
    "unknown_option: none": change(options={}),
    "not_a_uuid": change(args=["tell nobody"]),
    "not_a_uuid: upper case": change(args=[RUN.upper()]),
    "too_long": lambda body: body + b" " * MESSAGE_LIMIT_BYTES,
    "too_long: 20 MiB": lambda body: b"x" * (20 << 20),
    "missing": lambda body: None,
    "missing: empty": lambda body: b"",
}


async def test_a_wakeup_arrives(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """What is sent is handed over, soon, and leaves nothing in Redis."""
    handed = Handed()
    with working(valkey.url, handed):
        assert await send(valkey.url, RUN)
        assert [RUN] == handed.wait_for(1)
    assert [] == client.keys("*")


async def test_an_idle_worker_wakes_at_once(valkey: EmbeddedValkey) -> None:
    """No polling interval stands between sending and hand-off: the median is far below it."""
    handed, took = Handed(), []
    signals = RedisSignals(valkey.url)
    with working(valkey.url, handed):
        for count in range(1, 21):
            began = time.monotonic()
            assert await signals.wake([str(uuid4())])
            handed.wait_for(count)
            took.append(time.monotonic() - began)
    await signals.close()
    assert sorted(took)[10] < 0.05


async def test_duplicates_all_arrive(valkey: EmbeddedValkey) -> None:
    """The queue does not judge: ten wake-ups of one run are ten hand-offs."""
    handed = Handed()
    with working(valkey.url, handed):
        assert await send(valkey.url, *[RUN] * 10)
        assert [RUN] * 10 == handed.wait_for(10)


async def test_many_arrive_once_each(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """More than one batch of sending and of fetching: nothing is lost or repeated."""
    runs = [str(uuid4()) for _ in range(2500)]
    handed = Handed()
    assert await send(valkey.url, *runs)
    with working(valkey.url, handed):
        assert Counter(runs) == Counter(handed.wait_for(len(runs)))
    assert [] == client.keys("*")


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_between_good_ones_is_set_aside(
    valkey: EmbeddedValkey, client: redis.Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind is counted and kept for a person; the good ones around it arrive at once; nothing of it is logged."""
    caplog.set_level(logging.INFO)
    runs = [str(uuid4()) for _ in range(4)]
    body = GARBAGE[kind](good(RUN, "bad"))
    put(client, "1", good(runs[0], "1"))
    put(client, "bad", body)
    put(client, "2", good(runs[1], "2"))
    handed = Handed()
    with working(valkey.url, handed) as broker:
        handed.wait_for(2)
        put(client, "bad", body)
        put(client, "3", good(runs[2], "3"))
        put(client, "4", good(runs[3], "4"))
        # dramatiq's consumer would need 3 s after each.
        assert sorted(runs) == sorted(handed.wait_for(4, seconds=2))
        assert {kind.partition(":")[0]: 2} == broker.tally.counts()
    expected = [body[: MESSAGE_LIMIT_BYTES + 1]] * 2 if body else []
    assert expected == client.lrange(SET_ASIDE_KEY, 0, -1)
    assert 0 == client.hlen(MESSAGES_KEY)
    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_set_aside_is_bounded(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """A flood of garbage keeps only its newest part, and a good message behind it still arrives soon."""
    flood = SET_ASIDE_LIMIT + 200
    with client.pipeline() as pipeline:
        for number in range(flood):
            pipeline.hset(MESSAGES_KEY, str(number), f"garbage {number}")
            pipeline.rpush(QUEUE_KEY, str(number))
        pipeline.execute()
    put(client, "good", good(RUN, "good"))
    handed = Handed()
    with working(valkey.url, handed) as broker:
        assert [RUN] == handed.wait_for(1, seconds=5)
        assert {"undecodable": flood} == broker.tally.counts()
    assert SET_ASIDE_LIMIT == client.llen(SET_ASIDE_KEY)
    assert f"garbage {flood - 1}".encode() == client.lindex(SET_ASIDE_KEY, 0)


def test_a_full_redis_delays_no_good_one(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """Where nothing more can be kept, garbage is counted and lost, and the good ones go through."""
    put(client, "bad", b"garbage")
    put(client, "1", good(RUN, "1"))
    client.config_set("maxmemory", 1)
    handed = Handed()
    with working(valkey.url, handed) as broker:
        assert handed.wait_for(1, seconds=2) == [RUN]
        assert broker.tally.counts() == {"undecodable": 1}
    assert client.exists(SET_ASIDE_KEY, QUEUE_KEY, MESSAGES_KEY) == 0


def test_a_queue_key_of_another_type_stops_nothing(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """While a key is unusable the worker waits; when it is usable again it works on."""
    client.set(QUEUE_KEY, "in the way")
    handed, lost = Handed(), threading.Event()
    hooks = WorkerHooks(lost=lambda _: lost.set())
    with working(valkey.url, handed, hooks=hooks):
        assert lost.wait(10)
        client.delete(QUEUE_KEY)
        put(client, "1", good(RUN, "1"))
        assert [RUN] == handed.wait_for(1)


def test_a_failing_hand_off_is_counted(
    valkey: EmbeddedValkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed event loop costs that wake-up only: the actor never raises, dramatiq logs no text of it."""

    def refuse(run: str) -> None:
        raise RuntimeError(f"secret of {run}")

    put(client, "1", good(RUN, "1"))
    with working(valkey.url, refuse) as broker:
        wait_until(lambda: broker.tally.counts() == {"not_taken": 1}, "the count")
    assert "secret" not in caplog.text


def test_what_was_not_handled_is_given_back(valkey: EmbeddedValkey, client: redis.Redis) -> None:
    """A worker that stops returns what it had fetched; another one gets it."""
    runs = [str(uuid4()) for _ in range(50)]
    busy, go_on, handed = threading.Event(), threading.Event(), Handed()

    def slow(run: str) -> None:
        busy.set()
        go_on.wait(20)
        handed(run)

    hooks = WorkerHooks(draining=go_on.set)
    for number, run in enumerate(runs):
        put(client, str(number), good(run, str(number)))
    with working(valkey.url, slow, hooks=hooks):
        assert busy.wait(20)
    assert 0 < len(handed.wait_for(1)) < len(runs)
    with working(valkey.url, handed):
        assert Counter(runs) == Counter(handed.wait_for(len(runs)))


def test_hooks_tell_of_boot_drain_and_end(valkey: EmbeddedValkey) -> None:
    """In this order, each once."""
    heard: list[str] = []
    hooks = WorkerHooks(
        booted=lambda: heard.append("booted"),
        draining=lambda: heard.append("draining"),
        stopped=lambda: heard.append("stopped"),
    )
    with working(valkey.url, Handed(), hooks=hooks):
        assert ["booted"] == heard
    assert ["booted", "draining", "stopped"] == heard


async def test_wake_returns_false_fast_without_redis(tmp_path: Path) -> None:
    """Nobody who enqueues waits for a Redis that is away, whether it refuses, swallows or is unheard of."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [
            f"unix://{tmp_path}/none.sock?db=0",
            "redis://127.0.0.1:1/0",
            f"redis://127.0.0.1:{silent.getsockname()[1]}/0",
        ]
        for url in urls:
            began = time.monotonic()
            assert not await send(url, RUN)
            assert time.monotonic() - began < 1.5


async def test_a_cancel_is_never_swallowed(valkey: EmbeddedValkey) -> None:
    """Whoever is told to end while a wake-up is sent ends, at whatever point of it that is."""
    for turns in range(16):
        signals = RedisSignals(valkey.url)
        waking = asyncio.create_task(signals.wake([RUN]))
        for _ in range(turns):
            await asyncio.sleep(0)
        waking.cancel()
        await asyncio.wait([waking], timeout=5)
        assert waking.cancelled(), turns
        await signals.close()


async def test_wake_of_nothing_or_nonsense(tmp_path: Path) -> None:
    """No runs: nothing to do. No uuid: a bug of the caller's, and nothing is sent."""
    url = f"unix://{tmp_path}/none.sock?db=0"
    assert await send(url)
    with pytest.raises(ValueError, match="canonical uuid"):
        await send(url, RUN, "nonsense")


async def test_ping_tells_what_doctor_asks(valkey: EmbeddedValkey, client: redis.Redis, tmp_path: Path) -> None:
    """It answers with the policy and the length; another policy is not well; nor are a full one and silence."""
    signals = RedisSignals(valkey.url)
    put(client, "1", good(RUN, "1"))
    health = await signals.ping()
    assert (True, None, False, 1) == (health.reachable, health.refusal, health.evicts, health.waiting)
    client.config_set("maxmemory-policy", "allkeys-lru")
    health = await signals.ping()
    assert (True, True, "allkeys-lru") == (health.reachable, health.evicts, health.policy)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    health = await signals.ping()
    assert (True, False, "OutOfMemoryError") == (health.reachable, health.evicts, health.refusal)
    client.config_set("maxmemory", 0)
    client.replicaof("127.0.0.1", 1)
    health = await signals.ping()
    assert (True, "ReadOnlyError") == (health.reachable, health.refusal)
    client.replicaof("NO", "ONE")
    assert (await signals.ping()).refusal is None
    await signals.close()
    absent = RedisSignals(f"unix://{tmp_path}/none.sock?db=0")
    health = await absent.ping()
    assert (False, False, "ConnectionError") == (health.reachable, health.evicts, health.error)
    await absent.close()


async def test_worker_and_sender_outlive_a_restart_of_redis(
    valkey: EmbeddedValkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A killed server costs its time away only: both sides reconnect by themselves, and the process hears of both."""
    handed = Handed()
    heard: list[str] = []
    signals = RedisSignals(valkey.url)
    with working(valkey.url, handed, hooks=hearing(heard)):
        assert await signals.wake([RUN])
        handed.wait_for(1)
        old = int(client.info("server")["process_id"])
        os.kill(old, signal.SIGKILL)  # its keeper starts another
        wait_until(lambda: heard == ["lost: ConnectionError", "regained"], "lost and back")
        valkey.ensure()
        assert await signals.wake([RUN])
        assert [RUN, RUN] == handed.wait_for(2)
    await signals.close()
    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_worker_starts_before_redis_does(tmp_path: Path) -> None:
    """A worker that comes first waits, says so once, and takes what comes."""
    valkey = EmbeddedValkey(tmp_path)
    handed = Handed()
    heard: list[str] = []
    with working(valkey.url, handed, hooks=hearing(heard)):
        wait_until(lambda: len(heard) == 1, "that it is away")
        with valkey:
            assert await send(valkey.url, RUN)
            assert [RUN] == handed.wait_for(1)
        assert ["lost: ConnectionError", "regained"] == heard[:2]


def hearing(heard: list[str]) -> WorkerHooks:
    """Note what a worker tells of its broker."""
    return WorkerHooks(lost=lambda error: heard.append(f"lost: {error}"), regained=lambda: heard.append("regained"))


def test_worker_stops_quickly_without_redis(tmp_path: Path) -> None:
    """Nothing about an absent Redis holds up a shutdown for long."""
    heard: list[str] = []
    with working(f"unix://{tmp_path}/none.sock?db=0", Handed(), hooks=hearing(heard)):
        wait_until(lambda: len(heard) == 1, "that it is away")
        began = time.monotonic()
    assert time.monotonic() - began < 3


def test_a_worker_needs_a_hand_off() -> None:
    """A broker for senders cannot work."""
    broker = make_broker("redis://127.0.0.1:1/0", None)
    with pytest.raises(ValueError, match="hand_off"):
        run_worker(broker)
    broker.close()


def test_unknown_scheme_is_refused() -> None:
    """Only what redis-py speaks."""
    with pytest.raises(ValueError, match="scheme"):
        make_broker("amqp://127.0.0.1/", None)
