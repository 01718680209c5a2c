"""The host: the runs that one process drives, their leases, and the claims that bring them here.

A wake-up only says that somebody may act; the claim decides. Without a free slot a wake-up is dropped, and a slot that
frees claims the oldest due runs itself, so nothing depends on a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from codec.journal import ENTRY_VERSION
from codec.suspended import STATE_VERSION
from codec.vocabulary import RunStatus
from worker.ports.records import Claimed, RunRow
from worker.ports.runs import StoreError
from worker.ports.sealing import SealingError
from worker.runtime.errors import UnavailableError
from worker.runtime.feed import PolicyFeed
from worker.runtime.hold import Hold
from worker.runtime.parts import Parts
from worker.runtime.segments import hold_of, run_segment
from worker.runtime.slots import ProviderSlots
from worker.runtime.suspects import Suspects, Turn

__all__ = ["Host"]

_PAUSE_S: Final = 1.0
"""Seconds before claiming is tried again after the database refused."""
_OF_THE_RUN: Final = frozenset({"data", "integrity", "sequence"})
"""Problems of a step that come again with every try: such a segment was in vain like one that died."""
_CLAIM_BATCH: Final = 32
"""Runs claimed by one statement: 33,000 claims a second against 2,000 singly, measured on SQLite."""


class Host:
    """Drives runs as tasks of this event loop. Use as an async context manager: leaving it drains."""

    def __init__(self, parts: Parts, feed: PolicyFeed) -> None:
        self._parts = parts
        self._feed = feed
        self._slots = ProviderSlots(parts.clock)
        self._suspects = Suspects(parts.figures.max_runs)
        self._renewed_at = parts.clock.monotonic()
        self._held: dict[int, tuple[Hold, asyncio.Task[None]]] = {}
        self._named: dict[str, None] = {}
        self._oldest = False
        self._wanted = asyncio.Event()
        self._draining = False
        self._duties: list[asyncio.Task[None]] = []
        self._claiming: list[asyncio.Task[None]] = []
        self._driven: dict[asyncio.Task[None], None] = {}  # in order, so that a drain is the same each time

    @property
    def free(self) -> int:
        """Slots that are free."""
        return 0 if self._draining else self._parts.figures.max_runs - len(self._held)

    @property
    def draining(self) -> bool:
        """Whether nothing is to be begun here any more."""
        return self._draining

    @property
    def running(self) -> int:
        """Runs that are held now."""
        return len(self._held)

    async def start(self, *, claims: bool) -> None:
        """Begin the duties: heartbeats always, claiming only for a worker."""
        self._duties.append(asyncio.create_task(self._beat(), name="heartbeat"))
        if claims:
            self._claiming.append(asyncio.create_task(self._claim_loop(), name="claims"))

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Take nothing new, let each run reach its next boundary and be released. Late ones are left to their lease.

        What is claimed at this moment is given back: it was no attempt. Somebody else is told of what was released.
        """
        self._draining = True
        self._wanted.set()
        released = [hold.row.uuid for hold, _ in self._held.values()]
        for hold, _ in self._held.values():
            hold.draining = True
            hold.attention.set()
        ends_at = self._parts.clock.monotonic() + timeout_s
        while busy := [task for task in (*self._claiming, *self._driven) if not task.done()]:
            left = ends_at - self._parts.clock.monotonic()
            if left <= 0:
                break
            await asyncio.wait(busy, timeout=left)
        for task in (late := [*self._duties, *self._claiming, *self._driven]):
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=self._parts.figures.lease_s)  # longer nothing of them could count
        self._duties.clear()
        self._claiming.clear()
        if released:
            await self._parts.signals.wake(released)

    def wake(self, uuids: Iterable[str]) -> None:
        """Somebody says that these runs are due. Call on the loop."""
        if self.free > 0:
            self._named.update(dict.fromkeys(uuids))
            self._wanted.set()

    def wake_oldest(self) -> None:
        """Look for the oldest due runs, named by nobody. Call on the loop."""
        self._oldest = True
        self._wanted.set()

    def notice_cancel(self, run_uid: int) -> None:
        """Tell a run that is driven here that it was cancelled, without waiting for the next heartbeat."""
        held = self._held.get(run_uid)
        if held is not None:
            held[0].cancelled = True
            held[0].attention.set()

    def take(self, claimed: Claimed) -> asyncio.Task[None]:
        """Drive a claimed run as a task of this host. The task never raises but for cancellation."""
        before = self.task_of(claimed.row.uid)
        task = asyncio.create_task(self._drive(claimed, before), name=f"run-{claimed.row.uuid}")
        self._driven[task] = None
        task.add_done_callback(self._driven.pop)
        try:
            hold = hold_of(self._parts, claimed)
        except SealingError:
            return task
        hold.draining = self._draining
        self._held[claimed.row.uid] = (hold, task)
        task.add_done_callback(lambda _: self._let_go(claimed.row.uid, task))
        return task

    def task_of(self, run_uid: int) -> asyncio.Task[None] | None:
        """The task that drives a run here, if one does."""
        held = self._held.get(run_uid)
        return None if held is None else held[1]

    def take_own(self, row: RunRow) -> asyncio.Task[None]:
        """Drive a run whose row was written as held by this process, as `take` does."""
        return self.take(Claimed(row=row, token=row.token or "", was=RunStatus.QUEUED, expired=False))

    async def claim(self, limit: int, uuids: list[str] | None = None) -> list[Claimed]:
        """Claim due runs that this process can open.

        A process that was paused longer than a lease renews first: its own runs look due, and nobody but itself would
        take them from it.
        """
        if self._held and self._parts.clock.monotonic() - self._renewed_at > self._parts.figures.lease_s / 3:
            await self._renew()
        return await self._parts.store.claim(
            limit,
            token=self._parts.clock.nonce(),
            holder=self._parts.holder,
            lease_s=self._parts.figures.lease_s,
            key_ids=self._parts.sealer.key_ids,
            doc_version=max(STATE_VERSION, ENTRY_VERSION),
            uuids=uuids,
        )

    async def _drive(self, claimed: Claimed, before: asyncio.Task[None] | None) -> None:
        await asyncio.sleep(0)  # `take` registers the hold first
        if before is not None:
            # The run was taken from ourselves: one segment has to end before the next one begins.
            if not before.cancelling():
                before.cancel()
            await asyncio.wait([before])
        held = self._held.get(claimed.row.uid)
        try:
            with Turn(self._suspects, self._parts.figures.lease_s) as turn:
                await run_segment(
                    self._parts, self._feed, self._slots, claimed, turn, None if held is None else held[0]
                )
        except StoreError as error:
            self._parts.log("run.left", {"run": claimed.row.uuid, "problem": error.problem})
            if error.problem not in _OF_THE_RUN:
                await self._put_off(claimed, self._parts.figures.lease_s)
        except UnavailableError as error:
            self._parts.log("run.left", {"run": claimed.row.uuid, "problem": error.code})
            await self._put_off(claimed, self._parts.figures.lease_s)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the run is left to its lease and recovered
            self._parts.log("run.crashed", {"run": claimed.row.uuid, "error": type(error).__name__})

    async def _put_off(self, claimed: Claimed, after_s: float) -> None:
        """Give back, for a while, a run of which nothing was stored: that was no try of the run's.

        One of which something was stored is left to its lease, as all are when the database refuses this too.
        """
        with suppress(StoreError):
            await self._parts.store.give_back(claimed.row, claimed.token, after_s)

    def _let_go(self, run_uid: int, task: asyncio.Task[None]) -> None:
        held = self._held.get(run_uid)
        if held is not None and held[1] is task:
            was_full = self.free <= 0
            del self._held[run_uid]
            if held[0].yielding:
                self.wake([held[0].row.uuid])
            if was_full:
                self.wake_oldest()

    async def _claim_loop(self) -> None:
        while not self._draining:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._claim_wanted()
            except Exception as error:  # noqa: BLE001 - outermost loop: without it this process would never claim again
                self._parts.log("claim.failed", _problem(error))
                await asyncio.sleep(_PAUSE_S)
                self._oldest = True  # the names are gone; what they stood for is still due
                self._wanted.set()

    async def _claim_wanted(self) -> None:
        while self._named and self.free > 0:
            batch = [self._named.popitem()[0] for _ in range(min(len(self._named), self.free, _CLAIM_BATCH))]
            await self._take_all(await self.claim(len(batch), batch))
        self._named.clear()
        while self._oldest and self.free > 0:
            found = await self.claim(min(self.free, _CLAIM_BATCH))
            self._oldest = len(found) > 0
            await self._take_all(found)

    async def _take_all(self, found: Iterable[Claimed]) -> None:
        for claimed in found:
            if self._draining:
                await self._put_off(claimed, 0.0)
            else:
                self.take(claimed)

    async def _beat(self) -> None:
        lease = self._parts.figures.lease_s
        while True:
            await asyncio.sleep(lease / 3)
            try:
                await self._renew()
            except Exception as error:  # noqa: BLE001 - outermost loop: without it every run here would lose its lease
                self._parts.log("heartbeat.failed", _problem(error))

    def _deserves(self, hold: Hold, task: asyncio.Task[None], now: float) -> bool:
        """Whether a run's lease is to be renewed: its task lives, and what it waits for may still come back.

        Else the lease ends and another segment goes on; this one is told to stop.
        """
        if task.done():
            return False
        if now <= hold.deadline:
            return True
        if not task.cancelling():
            self._parts.log("run.overdue", {"run": hold.row.uuid})
            task.cancel()
        return False

    async def _renew(self) -> None:
        asked_at = self._parts.clock.monotonic()
        holds = [hold for hold, task in self._held.values() if self._deserves(hold, task, asked_at)]
        if not holds:
            self._renewed_at = asked_at
            return
        asked = {h.row.uid: h.token for h in holds}
        renewals = await self._parts.store.renew(list(asked.items()), self._parts.figures.lease_s)
        self._renewed_at = asked_at
        left: list[tuple[int, str]] = []
        for renewal in renewals:
            held = self._held.get(renewal.run_uid)
            if held is None or held[0].token != asked[renewal.run_uid]:
                # Let go of, or claimed anew, while the renewal was under way.
                if renewal.held:
                    left.append((renewal.run_uid, asked[renewal.run_uid]))
                continue
            hold, task = held
            if renewal.held:
                hold.proved_at = max(hold.proved_at, asked_at)
            else:
                task.cancel()
            if renewal.cancelled and not hold.cancelled:
                hold.cancelled = True
                hold.attention.set()
        if left:
            # Their segments ended without giving them up, and nobody is to wait for a lease that we made longer.
            await self._parts.store.renew(left, 0.0)


def _problem(error: Exception) -> dict[str, Any]:
    return {"problem": error.problem if isinstance(error, StoreError) else type(error).__name__}
