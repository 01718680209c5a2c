"""Port: the catalogue, read live. Its version rises with every write, last in the write's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from codec.catalogue import CatalogueSnapshot
from codec.facts import SourceText

__all__ = ["Catalogue", "CatalogueError", "ListedRecord", "RecordSpec", "Written"]


class CatalogueError(Exception):
    """A catalogue write or file is refused; nothing was written.

    Shape: `problem` is one clear sentence without any text of a record's content; `line` is the file's line, None
    outside of files. `missing` = the fault is that a named record does not exist.
    """

    def __init__(self, problem: str, line: int | None = None, *, missing: bool = False) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """One record as an editor wrote it: `kind` is policy, provider, configuration, snippet, skill, tool or egress.

    Shape: the policy's identifier is `policy`, a tool's its name, an egress entry's its host.
    """

    kind: str
    identifier: str
    fields: Mapping[str, Any] = field(repr=False)  # texts are among them
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRecord:
    """A record for lists: `details` holds names, classes, zones and switches, never a text."""

    kind: str
    identifier: str
    uid: int | None
    active: bool
    deleted: bool
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a write did: the version after it and `kind identifier` of what was created, changed and deleted."""

    version: int
    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


class Catalogue(Protocol):
    """Reads are consistent snapshots; each write is one transaction, audited (field names, not values), one bump."""

    async def snapshot(self, known: CatalogueSnapshot | None = None) -> CatalogueSnapshot:
        """Everything living, with its version; gives `known` back when its version is still the live one.

        What cannot be read makes `readable` False; it never makes a record look gone. Errors: `StoreError`.
        """
        ...

    async def texts(
        self, configuration: int, snippets: Sequence[int], skills: Sequence[int]
    ) -> tuple[int, tuple[SourceText, ...]]:
        """The version and the living texts of a configuration's prompt and of these sources, read in one snapshot.

        Shape: the prompt first (when it has text), then snippets and skills in the order asked, without deleted ones.
        Errors: `StoreError("unreadable")` when one of them cannot be opened.
        """
        ...

    async def apply(self, specs: Sequence[RecordSpec], *, prune: bool, actor: str, via: str) -> Written:
        """Make the catalogue hold these records: declarative per record, a field left out has its default.

        `prune` also deletes what is not named. Errors: `CatalogueError` with the record's line.
        """
        ...

    async def change(self, spec: RecordSpec, *, actor: str, via: str) -> Written:
        """Change the given fields of one living record (a value of None clears). Errors: `CatalogueError`."""
        ...

    async def delete(self, kind: str, identifier: str, *, actor: str, via: str) -> Written:
        """Delete softly and finally: the same identifier applied again is a new uid. Errors: `CatalogueError`."""
        ...

    async def carrying(self, kind: str, identifier: str) -> list[str]:
        """Uuids of the runs that are not final and carry or use this record."""
        ...

    async def listed(self) -> list[ListedRecord]:
        """All records, deleted ones too."""
        ...

    async def export(self) -> list[RecordSpec]:
        """All living records with their texts, as `apply` takes them."""
        ...

    async def add_actor(self, actor: Mapping[str, Any], *, by: str, via: str) -> Written:
        """Create or replace an actor: name, kind, admin, groups, grants, scopes, max_class, enabled."""
        ...

    async def disable_actor(self, name: str, *, by: str, via: str) -> Written:
        """Take every right from an actor until it is enabled again. Errors: `CatalogueError` when there is none."""
        ...
