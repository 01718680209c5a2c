"""Hosts of one installation: each has a ring of its own in a file, and all share a database with runs and records."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from codec.vocabulary import RunStatus
from tests.support.stores import new_run
from worker.adapters.sealing import KeyRing, RingSealer
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.create import create_runs
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import ensure_ring
from worker.adapters.sql.rotation import SqlKeys
from worker.adapters.sql.tables import audit, run
from worker.ports.catalogue import RecordSpec
from worker.ports.keeping import Rotation
from worker.ports.records import Document

__all__ = ["RECORDS", "Host", "nothing", "start_host"]

RECORDS: Final = (
    RecordSpec(
        kind="provider",
        identifier="house",
        fields={"kind": "scripted", "script": "/script.toml", "trust_zone": "local"},
    ),
    RecordSpec(
        kind="configuration",
        identifier="support",
        fields={"provider": "house", "model": "m", "system_prompt": "You answer."},
    ),
    RecordSpec(kind="snippet", identifier="tone", fields={"label": "Tone", "text": "Be kind."}),
    RecordSpec(kind="skill", identifier="refunds", fields={"name": "Refunds", "body": "Refund rules."}),
    RecordSpec(kind="snippet", identifier="gone", fields={"label": "Gone", "text": "Deleted."}),
)
"""Four with a text; the last one is deleted again."""


def nothing(done: int, of: int) -> None:
    """Take a progress and tell nobody."""


@dataclass(slots=True, kw_only=True)
class Host:
    """One host. `made` = what is sealed in each run's document, by uuid."""

    database: Database
    path: Path
    keys: SqlKeys
    sealer: RingSealer
    made: dict[str, bytes] = field(default_factory=dict)

    @property
    def ring(self) -> KeyRing:
        """What the file holds."""
        return KeyRing.load(self.path)

    @property
    def catalogue(self) -> SqlCatalogue:
        """The catalogue as this host opens it."""
        return SqlCatalogue(self.database, self.sealer)

    async def fill(self, runs: int) -> None:
        """Write the catalogue and some runs, queued ones."""
        await self.catalogue.apply(RECORDS, prune=False, actor="ada", via="cli")
        await self.catalogue.delete("snippet", "gone", actor="ada", via="cli")
        if runs:
            await self.add_runs(runs)

    async def add_runs(self, count: int) -> list[str]:
        """Write runs, each with a document sealed under a key of its own; gives their uuids."""
        rows = []
        for _ in range(count):
            key, name = self.sealer.new_key(), str(uuid.uuid4())
            self.made[name] = f"What {name} says.".encode()
            payload = self.sealer.seal(key.key, "request", name, "request", self.made[name])
            document = Document(kind="request", version=1, seq=0, payload=payload)
            rows.append(new_run(uuid=name, wrapped_key=key.wrapped, key_id=key.key_id, documents=(document,)))
        await self.database.transact(create_runs, rows)
        return [row.uuid for row in rows]

    async def rotate(self, *, add: bool = True) -> Rotation:
        """Rotate as ada."""
        return await self.keys.rotate(add=add, actor="ada", via="test", progress=nothing)

    async def add_key(self, *, force: bool = False) -> str:
        """Add a key as ada."""
        return await self.keys.add(force=force, actor="ada", via="test")

    async def opened(self) -> dict[str, bytes]:
        """Open every run's document; what cannot be opened raises."""
        statement = "SELECT uuid, wrapped_key, key_id, payload FROM run JOIN doc ON doc.run_uid = run.uid"
        found = {}
        for row in await self.select(statement):
            key = self.sealer.unwrap(bytes(row["wrapped_key"]), row["key_id"])
            found[row["uuid"]] = self.sealer.open(key, "request", row["uuid"], "request", bytes(row["payload"]))
        return found

    async def under(self) -> set[str]:
        """Give the ids of the keys that anything is under."""
        tables = ("run", "configuration", "snippet", "skill")
        return {row["key_id"] for table in tables for row in await self.select(f"SELECT key_id FROM {table}")}

    async def select(self, statement: str) -> list[dict[str, Any]]:
        """Read the database as it is."""

        def read(connection: sa.Connection) -> list[dict[str, Any]]:
            return [dict(row._mapping) for row in connection.execute(sa.text(statement))]

        return await self.database.read(read)

    async def change(self, uuids: Sequence[str], **values: Any) -> None:
        """Change rows of runs behind everybody's back."""
        changed = sa.update(run).where(run.c.uuid.in_(uuids)).values(values)
        await self.database.transact(lambda connection: connection.execute(changed).close())

    async def end(self, uuids: Sequence[str], status: RunStatus = RunStatus.COMPLETED) -> None:
        """Let runs have ended long ago."""
        await self.change(uuids, status=status.value, finished_at=1.0, due_at=None)

    async def audited(self) -> list[tuple[str, str | None]]:
        """Give decisions and details of the audit that are about keys."""
        rows = await self.database.read(
            lambda c: c.execute(sa.select(audit.c.decision, audit.c.detail).order_by(audit.c.uid)).all()
        )
        return [(row.decision, row.detail) for row in rows if "key" in row.decision]


async def start_host(database: Database, path: Path, *, grace_s: float = 0.0) -> Host:
    """Start a host as every process starts. Errors: `KeyRingError` when it must not."""
    sealer = RingSealer(await ensure_ring(database, path), path)
    return Host(database=database, path=path, keys=SqlKeys(database, path, grace_s), sealer=sealer)
