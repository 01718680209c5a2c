"""The port `Catalogue` on SQL: each read is one database snapshot, each write one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from codec.catalogue import CatalogueSnapshot
from codec.facts import SourceText
from worker.adapters.sql.catalogue_actors import check_actor, check_actor_name, disable_actor, write_actor
from worker.adapters.sql.catalogue_fields import check_identifier, check_record, check_records, kind_named
from worker.adapters.sql.catalogue_lists import read_carrying, read_export, read_list
from worker.adapters.sql.catalogue_read import read_snapshot, read_texts
from worker.adapters.sql.catalogue_rules import Job
from worker.adapters.sql.catalogue_write import delete_record, write_records
from worker.adapters.sql.engine import Database
from worker.ports.catalogue import ListedRecord, RecordSpec, Written
from worker.ports.sealing import Sealer

__all__ = ["SqlCatalogue"]


class SqlCatalogue:
    """The catalogue of one database. Values are checked before a transaction begins, references inside of it."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        """Take the database and what seals its texts."""
        self._database = database
        self._sealer = sealer

    async def snapshot(self, known: CatalogueSnapshot | None = None) -> CatalogueSnapshot:
        """See the port. One cheap read when `known` is still live."""
        return await self._database.read(read_snapshot, known)

    async def texts(
        self, configuration: int, snippets: Sequence[int], skills: Sequence[int]
    ) -> tuple[int, tuple[SourceText, ...]]:
        """See the port. Errors: `StoreError` when one of the texts cannot be opened."""
        return await self._database.read(read_texts, self._sealer, configuration, snippets, skills)

    async def apply(self, specs: Sequence[RecordSpec], *, prune: bool, actor: str, via: str) -> Written:
        """See the port."""
        job = Job(records=check_records(specs), complete=True, prune=prune, actor=actor, via=via)
        return await self._database.transact(write_records, self._sealer, job)

    async def change(self, spec: RecordSpec, *, actor: str, via: str) -> Written:
        """See the port."""
        job = Job(records=[check_record(spec)], complete=False, actor=actor, via=via)
        return await self._database.transact(write_records, self._sealer, job)

    async def delete(self, kind: str, identifier: str, *, actor: str, via: str) -> Written:
        """See the port."""
        found = kind_named(kind)
        name = check_identifier(found, identifier)
        return await self._database.transact(partial(delete_record, actor=actor, via=via), found, name)

    async def carrying(self, kind: str, identifier: str) -> list[str]:
        """See the port. Errors: `CatalogueError` when there is no such living record."""
        found = kind_named(kind)
        return await self._database.read(read_carrying, kind, check_identifier(found, identifier))

    async def listed(self) -> list[ListedRecord]:
        """See the port."""
        return await self._database.read(read_list)

    async def export(self) -> list[RecordSpec]:
        """See the port. Errors: `StoreError` when a record cannot be read whole."""
        return await self._database.read(read_export, self._sealer)

    async def add_actor(self, actor: Mapping[str, Any], *, by: str, via: str) -> Written:
        """See the port."""
        return await self._database.transact(partial(write_actor, by=by, via=via), check_actor(actor))

    async def disable_actor(self, name: str, *, by: str, via: str) -> Written:
        """See the port."""
        return await self._database.transact(partial(disable_actor, by=by, via=via), check_actor_name(name))
