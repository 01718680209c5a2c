"""The port `RunStore` on SQL: every method is one unit of work of another module."""

from __future__ import annotations

from collections.abc import Sequence

from worker.adapters.sql.borrowed import create_borrowed, create_borrowed_async
from worker.adapters.sql.claims import (
    ClaimTerms,
    block_run,
    claim_due,
    give_back_run,
    list_dead_cancelled,
    spare_run,
    take_wakeable,
)
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.create import create_runs_of_ours
from worker.adapters.sql.engine import Database
from worker.adapters.sql.gathering import Gathering
from worker.adapters.sql.inbox import Given, store_answers
from worker.adapters.sql.lanes import Lane
from worker.adapters.sql.people import cancel_run, close_run, retry_blocked_run
from worker.adapters.sql.reads import (
    list_audit,
    list_runs,
    read_answer,
    read_document,
    read_entries,
    read_sources,
    runs_of,
    stored_of,
)
from worker.adapters.sql.writer import GroupCommitWriter
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

__all__ = ["SqlRunStore"]


class SqlRunStore:
    """Runs in a database; the contract of each method is the port's. Belongs to one event loop."""

    def __init__(self, database: Database, *, lease_s: float) -> None:
        """Use an open database. Units: `lease_s`, the lease that a commit renews, in seconds."""
        self._database = database
        self._writer = GroupCommitWriter(database, lease_s)
        self._reads = Gathering(database.on(Lane.READS).read)
        self._writes = Gathering(database.transact)

    async def stop(self) -> None:
        """Commit what was submitted and answer what was asked. The database stays open."""
        await self._writer.close()
        await self._writes.close()
        await self._reads.close()

    # --- the holder of a run

    async def create(self, run: NewRun) -> tuple[RunRow, bool]:
        """See the port."""
        return await self._writes.one_of(create_runs_of_ours, run)

    async def create_in(self, connection: object, run: NewRun) -> tuple[RunRow, bool]:
        """See the port."""
        return await create_borrowed_async(connection, run)

    def create_in_blocking(self, connection: object, run: NewRun) -> tuple[RunRow, bool]:
        """See the port."""
        return create_borrowed(connection, run)

    async def commit(self, step: Append) -> Commit:
        """See the port."""
        return await self._writer.commit(step)

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
        """See the port."""
        terms = ClaimTerms(
            limit=limit,
            token=token,
            holder=holder,
            lease_s=lease_s,
            key_ids=key_ids,
            doc_version=doc_version,
            uuids=uuids,
        )
        return await self._database.transact(claim_due, terms)

    async def renew(self, holds: Sequence[tuple[int, str]], lease_s: float) -> list[Renewal]:
        """See the port."""
        return await self._writer.renew(holds, lease_s)

    async def block(self, run_uid: int, token: str, blocked: str) -> bool:
        """See the port."""
        return await self._database.transact(block_run, run_uid, token, blocked)

    async def give_back(self, row: RunRow, token: str, after_s: float = 0.0) -> bool:
        """See the port."""
        return await self._database.transact(give_back_run, row, token, after_s)

    async def spare(self, run_uid: int, token: str) -> None:
        """See the port."""
        await self._database.transact(spare_run, run_uid, token)

    # --- the sweeper

    async def wakeable(self, limit: int, interval_s: float) -> list[str]:
        """See the port."""
        return await self._database.transact(take_wakeable, limit, interval_s)

    async def close_dead_cancelled(self, limit: int) -> list[RunRow]:
        """See the port."""
        return await self._database.read(list_dead_cancelled, limit)

    # --- people

    async def answer(self, run: RunRow, row: InboxRow, audit: AuditRow, *, replace: bool) -> StoredAnswer:
        """See the port."""
        return await self._writes.one_of(store_answers, Given(run.uid, row, audit, replace))

    async def retry_blocked(self, run: RunRow, audit: AuditRow) -> bool:
        """See the port."""
        return await self._database.transact(retry_blocked_run, run.uid, audit)

    async def cancel_running(self, run: RunRow, audit: AuditRow) -> bool:
        """See the port."""
        return await self._database.transact(cancel_run, run.uid, audit)

    async def close(self, run: RunRow, entry: EntryRow, head: bytes, audit: AuditRow | None) -> bool:
        """See the port."""
        return await self._database.transact(close_run, run, entry, head, audit)

    # --- reads

    async def run(self, uuid: str) -> RunRow | None:
        """See the port."""
        return await self._reads.one_of(runs_of, uuid)

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """See the port."""
        return await self._database.read(list_runs, wanted)

    async def stored(self, run_uid: int) -> Stored:
        """See the port."""
        return await self._reads.one_of(stored_of, run_uid)

    async def entries(self, run_uid: int, after: int = 0) -> list[EntryRow]:
        """See the port."""
        return await self._reads.call(read_entries, run_uid, after)

    async def document(self, run_uid: int, kind: str) -> Document | None:
        """See the port."""
        return await self._reads.call(read_document, run_uid, kind)

    async def inbox(self, run_uid: int, question: str) -> InboxRow | None:
        """See the port."""
        return await self._reads.call(read_answer, run_uid, question)

    async def sources(self, run_uid: int) -> list[SourceRow]:
        """See the port."""
        return await self._database.read(read_sources, run_uid)

    async def now(self) -> float:
        """See the port."""
        return await self._database.read(read_now)

    # --- the audit

    async def audit(self, run: str | None, since: float | None) -> list[AuditRow]:
        """See the port."""
        return await self._database.read(list_audit, run, since)
