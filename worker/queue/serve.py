"""A worker process: wake-ups in, runs driven, swept and drained. What `regate worker`, `sweep` and `up` run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from worker.bootstrap import open_installation
from worker.queue.broker import make_broker, run_worker
from worker.queue.middleware import WorkerHooks
from worker.runtime.sweeper import sweep_forever
from worker.settings import Settings

__all__ = ["serve_sweeper", "serve_worker"]

_Log = Callable[[str, dict[str, Any]], None]


async def serve_worker(settings: Settings, *, kind: str, log: _Log, ready: Callable[[], None]) -> None:
    """Drive runs until SIGTERM or SIGINT, then drain; a second signal exits at once.

    `ready` is called when wake-ups are taken. Errors: `StartError`.
    """
    async with open_installation(settings, kind=kind, log=log) as opened:
        stop = _stop_on_signals(log)
        host, loop = opened.runtime.host, asyncio.get_running_loop()

        def hand_off(uuid: str) -> None:
            loop.call_soon_threadsafe(host.wake, [uuid])

        url = await opened.signals.url()
        hooks = WorkerHooks(connected=lambda up: log("broker.regained" if up else "broker.lost", {}))
        broker = make_broker(url, hand_off, hooks=hooks)
        running = await asyncio.to_thread(run_worker, broker)
        sweeping = asyncio.create_task(sweep_forever(opened.runtime.parts, host.wake_oldest), name="sweeper")
        host.wake_oldest()
        log("worker.ready", {"holder": opened.identity})
        ready()
        try:
            await stop.wait()
            log("worker.draining", {"runs": host.running})
        finally:
            sweeping.cancel()
            await asyncio.to_thread(running.stop)
            await host.drain()
            broker.close()
    log("worker.stopped", {})


async def serve_sweeper(settings: Settings, *, log: _Log, ready: Callable[[], None]) -> None:
    """Sweep until SIGTERM or SIGINT, without driving anything. Errors: `StartError`."""
    async with open_installation(settings, kind="sweeper", log=log) as opened:
        stop = _stop_on_signals(log)
        sweeping = asyncio.create_task(sweep_forever(opened.runtime.parts, None), name="sweeper")
        ready()
        await stop.wait()
        sweeping.cancel()


def _stop_on_signals(log: _Log) -> asyncio.Event:
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
