"""The group-commit writer: steps of many runs share one transaction, and a heartbeat rides along.

There is no delay on purpose: whatever has queued up while a transaction ran is the next one. So a lone step commits at
once, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from worker.adapters.sql.claims import renew_leases
from worker.adapters.sql.commit import commit_steps
from worker.adapters.sql.engine import Database
from worker.adapters.sql.errors import CommitUnknownError, RefusedError, RepeatableError
from worker.adapters.sql.lanes import Lane
from worker.ports.records import Append, Commit, Renewal
from worker.ports.runs import StoreError

__all__ = ["GroupCommitWriter"]

_MOST_STEPS: Final = 512
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Bounds of a batch. Measured: beyond 500 steps the rate hardly rises, while every step waits for the whole batch."""
_PAUSE_S: Final = 0.2
"""Seconds between two tries of a batch that met no database: a restarting server is asked five times a second."""


@dataclass(frozen=True, slots=True)
class _Step:
    append: Append
    outcome: asyncio.Future[Commit]


@dataclass(frozen=True, slots=True)
class _Beat:
    holds: Sequence[tuple[int, str]]
    lease_s: float
    renewals: asyncio.Future[list[Renewal]]


@dataclass(frozen=True, slots=True)
class _Work:
    """What one transaction holds: steps of different runs sorted by uid, and heartbeats."""

    steps: Sequence[_Step]
    beats: Sequence[_Beat]


class GroupCommitWriter:
    """Commits steps and heartbeats of one event loop. A submitted step is never withdrawn, whatever its waiter does."""

    def __init__(self, database: Database, lease_s: float) -> None:
        """Write through `database`; `lease_s` is the lease that a step with `Due.LEASE` renews, in seconds."""
        self._database = database.on(Lane.STEPS)
        self._lease_s = lease_s
        self._steps: deque[_Step] = deque()
        self._beats: list[_Beat] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, step: Append) -> Commit:
        """Append a step; several steps of one run commit in the order of their calls.

        Errors: `StoreError` of this step, also when the database stayed away for a whole lease; `commit_unknown` when
        for as long nobody could tell whether it was written, `sequence` when its entries leave a gap.
        """
        if any(entry.seq != step.first + i for i, entry in enumerate(step.entries)):
            raise StoreError("sequence")
        outcome: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()
        self._steps.append(_Step(step, outcome))
        self._start()
        return await outcome

    async def renew(self, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        """Extend leases in the next transaction. Errors: `StoreError`."""
        renewals: asyncio.Future[list[Renewal]] = asyncio.get_running_loop().create_future()
        self._beats.append(_Beat(holds, lease_s, renewals))
        self._start()
        return await renewals

    async def close(self) -> None:
        """Commit everything that was submitted, then return."""
        while self._task is not None:
            await asyncio.wait([self._task])  # whoever is cancelled while waiting takes no step along

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())  # kept here; `close` waits for it

    async def _run(self) -> None:
        try:
            while self._steps or self._beats:
                work = self._take()
                try:
                    await self._flush(work)
                except Exception as error:  # noqa: BLE001 - a bug must reach its waiters and leave the writer alive
                    _fail(work, error)
        finally:
            self._task = None

    def _take(self) -> _Work:
        """Cut the next batch: one step per run, since the second one's guard needs the first one's sequence."""
        taken: dict[int, _Step] = {}
        later: list[_Step] = []
        size = 0
        while self._steps and len(taken) < _MOST_STEPS:
            step = self._steps[0]
            if step.append.run_uid in taken:
                later.append(self._steps.popleft())
                continue
            if taken and size + step.append.size > _MOST_BYTES:
                break
            taken[step.append.run_uid] = self._steps.popleft()
            size += step.append.size
        self._steps.extendleft(reversed(later))
        beats, self._beats = self._beats, []
        return _Work([taken[uid] for uid in sorted(taken)], beats)

    async def _flush(self, work: _Work, tried_at: float | None = None) -> None:
        """Commit a batch and tell its waiters.

        While the database is away, and after an interrupted COMMIT, it is committed again for as long as a lease: what
        waits here are replies that were paid for, and the guards see to it that nothing lands twice.
        """
        began = self._database.monotonic()
        while True:
            try:
                done = await self._database.transact(_write, work, self._lease_s, tried_at)
            except RefusedError as error:
                await self._bisect(work, error, tried_at)
                return
            except StoreError as error:
                failure = error
            else:
                _settle(work, done)
                return
            if isinstance(failure, CommitUnknownError):
                tried_at = began if tried_at is None else tried_at
            hopeless = tried_at is None and not _passes(failure)
            if hopeless or self._database.monotonic() >= began + self._lease_s:
                _fail(work, failure if tried_at is None else CommitUnknownError())
                return
            await asyncio.sleep(_PAUSE_S)

    async def _bisect(self, work: _Work, error: RefusedError, tried_at: float | None) -> None:
        """Commit the halves of a batch that the database refused, down to the step that offends."""
        if work.beats and work.steps:
            halves = [_Work([], work.beats), _Work(work.steps, [])]
        elif len(work.steps) > 1:
            middle = len(work.steps) // 2
            halves = [_Work(work.steps[:middle], []), _Work(work.steps[middle:], [])]
        else:
            _fail(work, error)
            return
        for half in halves:
            await self._flush(half, tried_at)


def _passes(failure: StoreError) -> bool:
    """Tell whether a failure lies outside of the batch: a server that restarts, a network that is away, a lock."""
    return isinstance(failure, RepeatableError) or failure.problem in ("unavailable", "busy")


@dataclass(frozen=True, slots=True)
class _Done:
    commits: list[Commit]
    renewals: list[list[Renewal]]


def _write(connection: sa.Connection, work: _Work, lease_s: float, tried_at: float | None) -> _Done:
    """Commit one batch: the steps, then the heartbeats. Locks as these do."""
    steps = [step.append for step in work.steps]
    commits = commit_steps(connection, steps, lease_s, tried_at=tried_at) if steps else []
    return _Done(commits, [renew_leases(connection, beat.holds, beat.lease_s) for beat in work.beats])


def _settle(work: _Work, done: _Done) -> None:
    for step, commit in zip(work.steps, done.commits, strict=True):
        if not step.outcome.done():
            step.outcome.set_result(commit)
    for beat, renewals in zip(work.beats, done.renewals, strict=True):
        if not beat.renewals.done():
            beat.renewals.set_result(renewals)


def _fail(work: _Work, error: Exception) -> None:
    waiters: list[asyncio.Future[Any]] = [step.outcome for step in work.steps]
    waiters += [beat.renewals for beat in work.beats]
    for waiting in waiters:
        if not waiting.done():
            # One exception object must not be raised in many tasks: each would add its frames to it.
            waiting.set_exception(StoreError(error.problem) if isinstance(error, StoreError) else error)
