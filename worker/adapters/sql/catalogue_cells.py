"""What stored cells of the catalogue mean. Total: a cell that makes no sense has the most closed meaning.

Beside that, such a cell makes the whole catalogue unreadable, so that nothing is permitted until it is mended; it
never makes its record look gone. A zone, a class and the policy's switch have a closed meaning of their own and do
not.
"""

from __future__ import annotations

import json

import sqlalchemy as sa

from codec.vocabulary import ActorKind, DeclaredClass, Enforcement, TrustZone
from worker.adapters.sql.catalogue_values import normal_fallbacks

__all__ = ["Cells", "declared_class", "enforcement_of", "names_of", "readable_class", "trust_zone"]


def trust_zone(cell: object) -> TrustZone:
    """Read a zone; an unknown one is the least trusted."""
    try:
        return TrustZone(cell)  # type: ignore[arg-type]  # any value is looked up
    except ValueError:
        return TrustZone.EXTERNAL_GLOBAL


def declared_class(cell: object) -> DeclaredClass | None:
    """Read the class of a source: nothing declared, one of the six, or `unreadable`, which is above everything."""
    if cell is None or cell == "":
        return None
    try:
        return DeclaredClass(cell)  # type: ignore[arg-type]  # any value is looked up
    except ValueError:
        return DeclaredClass.UNREADABLE


def readable_class(cell: object) -> DeclaredClass | None:
    """Read the class up to which somebody may read. Unreadable is nothing here, for above everything would be all."""
    found = declared_class(cell)
    return None if found is DeclaredClass.UNREADABLE else found


def enforcement_of(cell: object) -> Enforcement:
    """Read the policy's switch. Only `observe` observes, trimmed and in any case; everything else enforces."""
    observes = isinstance(cell, str) and cell.strip().lower() == Enforcement.OBSERVE
    return Enforcement.OBSERVE if observes else Enforcement.ENFORCE


def names_of(cell: object) -> tuple[str, ...] | None:
    """Read a JSON list of texts; None when it is none."""
    try:
        found = json.loads(cell) if isinstance(cell, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        return None
    return tuple(found)


class Cells:
    """Reads cells of rows and remembers whether all could be understood."""

    def __init__(self) -> None:
        """Begin with a catalogue that is readable."""
        self.readable = True

    def names(self, row: sa.RowMapping, column: str) -> tuple[str, ...]:
        """Read a list of names."""
        found = names_of(row[column])
        if found is None:
            self.readable = False
        return found or ()

    def optional_names(self, row: sa.RowMapping, column: str) -> tuple[str, ...] | None:
        """Read a list of names that may be absent."""
        return None if row[column] is None else self.names(row, column)

    def fallbacks(self, row: sa.RowMapping) -> tuple[str, ...]:
        """Read a chain. An entry that is no text names nothing and is never taken, so it is no entry."""
        try:
            found = json.loads(row["fallbacks"])
        except (TypeError, ValueError, RecursionError):
            found = None
        if not isinstance(found, list):
            self.readable = False
            return ()
        return normal_fallbacks(found)

    def number(self, row: sa.RowMapping, column: str) -> int:
        """Read a count; SQLite keeps whatever was written into a column."""
        found = row[column]
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self.readable = False
            return 0
        return found

    def text(self, row: sa.RowMapping, column: str) -> str:
        """Read a text that must be there."""
        found = row[column]
        if not isinstance(found, str):
            self.readable = False
            return ""
        return found

    def optional_text(self, row: sa.RowMapping, column: str) -> str | None:
        """Read a text that may be absent."""
        return None if row[column] is None else self.text(row, column)

    def actor_kind(self, row: sa.RowMapping) -> ActorKind:
        """Read what an actor is; an unknown kind is nobody."""
        try:
            return ActorKind(row["kind"])
        except ValueError:
            self.readable = False
            return ActorKind.ANONYMOUS
