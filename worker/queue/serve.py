"""A worker process: wake-ups in, runs driven, swept and drained. What `regate worker`, `sweep` and `up` run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from worker.bootstrap import Installation, LazySignals, open_installation
from worker.queue.beat import beating
from worker.queue.broker import make_broker, run_worker
from worker.queue.middleware import WorkerHooks
from worker.queue.watchdog import watched
from worker.runtime.sweeper import sweep_forever
from worker.settings import Settings
from worker.telemetry import Log

__all__ = ["serve_sweeper", "serve_worker", "warn_of_eviction"]


async def serve_worker(settings: Settings, *, kind: str, log: Log, ready: Callable[[], None]) -> None:
    """Drive runs until SIGTERM or SIGINT, then drain; a second signal exits at once.

    `ready` is called when wake-ups are taken. Errors: `StartError`.
    """
    with watched(log, settings.lease_seconds / 3):
        await _serve_worker(settings, kind, log, ready)


async def _serve_worker(settings: Settings, kind: str, log: Log, ready: Callable[[], None]) -> None:
    async with (
        beating(settings.beat_file, log) as beat,
        open_installation(settings, kind=kind, log=log) as opened,
    ):
        stop = _stop_on_signals(log)
        host, loop = opened.runtime.host, asyncio.get_running_loop()

        def hand_off(uuid: str) -> None:
            loop.call_soon_threadsafe(host.wake, [uuid])

        url = await opened.signals.url()
        await warn_of_eviction(opened.signals, log)
        hooks = WorkerHooks(
            lost=lambda error: log("broker.lost", {"error": error}), regained=lambda: log("broker.regained", {})
        )
        broker = make_broker(url, hand_off, hooks=hooks)
        running = await asyncio.to_thread(run_worker, broker)
        try:
            async with _sweeping(opened, host.wake_oldest, log):
                host.wake_oldest()
                log("worker.ready", {"holder": opened.identity})
                beat.ready()
                ready()
                await stop.wait()
            beat.draining()
            log("worker.draining", {"runs": host.running})
        finally:
            await asyncio.to_thread(running.stop)
            log("intake.stopped", {"runs": host.running})  # from here on runs are asked to let go
            await host.drain()
            broker.close()
    log("worker.stopped", {})


async def serve_sweeper(settings: Settings, *, log: Log, ready: Callable[[], None]) -> None:
    """Sweep until SIGTERM or SIGINT, without driving anything. Errors: `StartError`."""
    async with (
        beating(settings.beat_file, log) as beat,
        open_installation(settings, kind="sweeper", log=log) as opened,
    ):
        stop = _stop_on_signals(log)
        async with _sweeping(opened, None, log):
            log("sweeper.ready", {"holder": opened.identity})
            beat.ready()
            ready()
            await stop.wait()
        beat.draining()
    log("sweeper.stopped", {})


@asynccontextmanager
async def _sweeping(opened: Installation, claim: Callable[[], None] | None, log: Log) -> AsyncIterator[None]:
    task = asyncio.create_task(_sweep(opened, claim, log), name="sweeper")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _sweep(opened: Installation, claim: Callable[[], None] | None, log: Log) -> None:
    parts = opened.runtime.parts
    while True:
        try:
            await sweep_forever(parts, claim)
        except Exception as error:  # noqa: BLE001 - without a sweeper lost wake-ups stay lost, so it always begins anew
            log("sweep.crashed", {"error": type(error).__name__})
        await asyncio.sleep(parts.figures.sweep_s)


async def warn_of_eviction(signals: LazySignals, log: Log) -> None:
    """Say in the log when the broker may drop wake-ups for want of memory; such runs then wait for a sweep."""
    health = await signals.health()
    if health.evicts:
        log("broker.evicts", {"policy": health.policy or "unknown", "wanted": "noeviction"})


def _stop_on_signals(log: Log) -> asyncio.Event:
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            log("worker.killed", {})
            os._exit(130)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    return stop
