"""Port: runs and their journals. The row is the run; everything here is a guarded write or a plain read of it.

Payloads are sealed before they come here and opened after they leave: a store sees no content. Times are the
database's, in seconds since the epoch. Errors of the database itself surface as `StoreError`; nothing was written then,
or the call says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.ports.records import (
    Append,
    AuditRow,
    Claimed,
    Commit,
    Document,
    EntryRow,
    InboxRow,
    NewRun,
    Renewal,
    RunFilter,
    RunRow,
    SourceRow,
    Stored,
    StoredAnswer,
)

__all__ = ["Audit", "BorrowError", "RunStore", "StoreError"]


class StoreError(Exception):
    """The database refused or failed. `problem` is a stable word; the message never holds a value."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class BorrowError(StoreError):
    """A connection of the caller's cannot be used for a run; nothing was written, the transaction is as it was.

    `problem`: unsupported, no_transaction (autocommit), aborted (its transaction has failed), closed, other_thread,
    other_database (no tables of ours, or another installation's), not_permitted (read-only, or without the rights).
    """


class Audit(Protocol):
    """The audit trail: each row is written in the transaction of what it tells, and never changed."""

    async def audit(self, run: str | None, since: float | None) -> list[AuditRow]:
        """Read rows, oldest first."""
        ...


class RunStore(Audit, Protocol):
    """Everything that is stored about runs."""

    async def create(self, run: NewRun) -> tuple[RunRow, bool]:
        """Write a run; gives its row and whether it is new (False: the idempotency key was used, see `body`)."""
        ...

    async def create_in(self, connection: object, run: NewRun) -> tuple[RunRow, bool]:
        """Write a run in the transaction that is open on a caller's connection, as `create` does in one of its own.

        Nothing is committed or rolled back: the run is there when the caller commits. It is written whole or not at
        all, and whatever is raised, the transaction goes on. A sync connection is used on the calling thread.
        Errors: `BorrowError`; `StoreError`, of which `busy` and `conflict` (a deadlock, a snapshot that is too old)
        mean that the caller's transaction should be repeated.
        """
        ...

    def create_in_blocking(self, connection: object, run: NewRun) -> tuple[RunRow, bool]:
        """Do the same, for a sync connection alone, without an event loop. May be called on any thread."""
        ...

    async def commit(self, step: Append) -> Commit:
        """Append a step through the group-commit writer. A submitted step is never withdrawn, even if the waiter is.

        Errors: `StoreError` for this step alone when its data cannot be stored.
        """
        ...

    async def claim(
        self,
        limit: int,
        *,
        token: str,
        holder: str,
        lease_s: float,
        key_ids: frozenset[str],
        doc_version: int,
        uuids: Sequence[str] | None = None,
    ) -> list[Claimed]:
        """Claim up to `limit` due runs that this process can open, oldest due first; only the named ones if any.

        Each claimed run: running, this token, a new segment number, attempts + 1, due when the lease ends. Atomic: no
        two claimers get the same run. Errors: `StoreError` (`key_behind`) when `key_ids` lacks the installation's
        active key: such a process can compose and resume nothing.
        """
        ...

    async def renew(self, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        """Let leases of (run_uid, token) end `lease_s` from now, in one statement; 0 = such a run is due.

        `held` False: lost. `cancelled`: stop it.
        """
        ...

    async def wakeable(self, limit: int, interval_s: float) -> list[str]:
        """Uuids of due runs that were not woken within the interval, marking them woken: once for the whole fleet."""
        ...

    async def close_dead_cancelled(self, limit: int) -> list[RunRow]:
        """Cancelled runs whose segment's lease ended without its closing entry."""
        ...

    async def run(self, uuid: str) -> RunRow | None:
        """One row."""
        ...

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """Rows, newest first. Never opens a payload."""
        ...

    async def stored(self, run_uid: int) -> Stored:
        """What a run stands on. Of a run that is not there: nothing."""
        ...

    async def entries(self, run_uid: int, after: int = 0) -> list[EntryRow]:
        """Journal rows with seq > after, in order."""
        ...

    async def document(self, run_uid: int, kind: str) -> Document | None:
        """One sealed document."""
        ...

    async def inbox(self, run_uid: int, question: str) -> InboxRow | None:
        """The answer to a question."""
        ...

    async def sources(self, run_uid: int) -> list[SourceRow]:
        """The run's carried sources."""
        ...

    async def answer(self, run: RunRow, row: InboxRow, audit: AuditRow, *, replace: bool) -> StoredAnswer:
        """Store an answer: audit first, then the guarded insert, then the run is due now; one transaction.

        Guard: still waiting, the same question, not expired by database time. `replace` = a denial may take
        the place of an unconsumed answer of a blocked run.
        """
        ...

    async def retry_blocked(self, run: RunRow, audit: AuditRow) -> bool:
        """Make a blocked run due now with cause `resume`. False when it is not blocked any more."""
        ...

    async def cancel_running(self, run: RunRow, audit: AuditRow) -> bool:
        """Set a running run cancelled, its token kept. False when it does not run any more."""
        ...

    async def close(self, run: RunRow, entry: EntryRow, head: bytes, audit: AuditRow | None) -> bool:
        """Append a closing entry to a run that nobody holds (or a dead cancelled one) and make it cancelled.

        Guard: the row's seq and status are still those of `run`, and it is not running. False when they are not.
        """
        ...

    async def block(self, run_uid: int, token: str, blocked: str) -> bool:
        """Give up a claimed run without an entry, because what is stored cannot be read: blocked.

        It waits again as its question says (queued without one), due only when that expires.
        """
        ...

    async def give_back(self, row: RunRow, token: str, after_s: float = 0.0) -> bool:
        """Give up a claim of which nothing was stored: as `row` was before, no attempt, due in `after_s` seconds.

        False when the claim is lost, the run was cancelled, or an entry was stored after all.
        """
        ...

    async def spare(self, run_uid: int, token: str) -> None:
        """Count this claim as none in vain although nothing is stored: its process only waits to be let act."""
        ...

    async def now(self) -> float:
        """The database's clock."""
        ...
