"""The port `RunStore` on SQL: every method is one unit of work of another module."""

from __future__ import annotations

from collections.abc import Sequence

from worker.adapters.sql.claims import (
    ClaimTerms,
    block_run,
    claim_due,
    give_back_run,
    list_dead_cancelled,
    take_wakeable,
)
from worker.adapters.sql.clock import read_now
from worker.adapters.sql.create import create_run
from worker.adapters.sql.engine import Database
from worker.adapters.sql.inbox import AnswerRefusedError, cancel_run, close_run, retry_blocked_run, store_answer
from worker.adapters.sql.reads import (
    ReadService,
    list_audit,
    list_runs,
    read_answer,
    read_document,
    read_entries,
    read_run,
    read_sources,
)
from worker.adapters.sql.writer import GroupCommitWriter
from worker.adapters.sql.writes import record_audit
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
    StoredAnswer,
)

__all__ = ["SqlRunStore"]


class SqlRunStore:
    """Runs in a database; the contract of each method is the port's. Belongs to one event loop."""

    def __init__(self, database: Database, *, lease_s: float) -> None:
        """Use an open database. Units: `lease_s`, the lease that a commit renews, in seconds."""
        self._database = database
        self._writer = GroupCommitWriter(database, lease_s)
        self._reader = ReadService(database)

    async def stop(self) -> None:
        """Commit what was submitted and answer what was asked. The database stays open."""
        await self._writer.close()
        await self._reader.close()

    # --- the holder of a run

    async def create(self, run: NewRun) -> tuple[RunRow, bool]:
        """See the port."""
        return await self._database.transact(create_run, run)

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

    async def give_back(self, run_uid: int, token: str, cause: str | None) -> bool:
        """See the port."""
        return await self._database.transact(give_back_run, run_uid, token, cause)

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
        try:
            await self._database.transact(store_answer, run.uid, row, audit, replace=replace)
        except AnswerRefusedError as refused:
            return refused.outcome
        return StoredAnswer()

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
        return await self._reader.read(read_run, uuid)

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """See the port."""
        return await self._database.read(list_runs, wanted)

    async def entries(self, run_uid: int, after: int = 0) -> list[EntryRow]:
        """See the port."""
        return await self._reader.read(read_entries, run_uid, after)

    async def document(self, run_uid: int, kind: str) -> Document | None:
        """See the port."""
        return await self._reader.read(read_document, run_uid, kind)

    async def inbox(self, run_uid: int, question: str) -> InboxRow | None:
        """See the port."""
        return await self._reader.read(read_answer, run_uid, question)

    async def sources(self, run_uid: int) -> list[SourceRow]:
        """See the port."""
        return await self._database.read(read_sources, run_uid)

    async def now(self) -> float:
        """See the port."""
        return await self._database.read(read_now)

    # --- the audit

    async def record(self, rows: Sequence[AuditRow]) -> None:
        """See the port."""
        await self._database.transact(record_audit, rows)

    async def audit(self, run: str | None, since: float | None) -> list[AuditRow]:
        """See the port."""
        return await self._database.read(list_audit, run, since)
