"""The sweeper: what is due and was not woken lately is woken again, whoever was meant to do it.

Invariant: no due run waits longer than one sweep of a living fleet. Safe in twenty processes: the store marks what it
hands out, once per interval for all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from worker.ports.runs import StoreError
from worker.runtime.journalling import entry_link, entry_row
from worker.runtime.parts import Parts

__all__ = ["sweep_forever", "sweep_once"]

_BATCH: Final = 500
"""Runs woken by one sweep; the rest waits for the next one of anybody."""


async def sweep_once(parts: Parts, claim: Callable[[], None] | None) -> int:
    """Wake what is due, close what was cancelled under a dead worker; give the number of runs woken.

    `claim` is what a process with slots does each time: a message may be lost, or arrive where every slot is taken,
    sweep after sweep, while the mark of each sweep keeps the others from waking that run.
    """
    if claim is not None:
        claim()
    due = await parts.store.wakeable(_BATCH, parts.figures.sweep_s)
    if due:
        await parts.signals.wake(due)
    for row in await parts.store.close_dead_cancelled(_BATCH):
        entry = entry_row(
            "cancel_requested", seq=row.seq + 1, segment=row.segment, policy=0, prev=row.head, by="regate"
        )
        try:
            await parts.store.close(row, entry, entry_link(row.uuid, row.token or "", entry), None)
        except StoreError as error:  # one row that cannot be closed must not keep the others from it
            parts.log("run.not_closed", {"run": row.uuid, "problem": error.problem})
    return len(due)


async def sweep_forever(parts: Parts, claim: Callable[[], None] | None) -> None:
    """Sweep at every interval, jittered by a fifth so that a fleet spreads out."""
    while True:
        try:
            await sweep_once(parts, claim)
        except StoreError as error:
            parts.log("sweep.failed", {"problem": error.problem})
        await asyncio.sleep(parts.figures.sweep_s * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, no secret
