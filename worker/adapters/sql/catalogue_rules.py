"""Rules of a write that depend on what is stored and on what else is written. Pure: rows in, values or a refusal out.

The post-state counts, not the order of a file: whatever a record names must live once the whole write is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from worker.adapters.sql.catalogue_cells import Cells
from worker.adapters.sql.catalogue_fields import LOCAL_VIAS, Checked, Field, Shape

__all__ = ["Job", "Living", "check_all", "values_of"]

Living = Mapping[str, Mapping[str, sa.RowMapping]]
"""Living rows by kind and identifier, without sealed columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One write. `complete` = the records are whole: a field left out has its default; else only given ones change."""

    records: Sequence[Checked]
    complete: bool
    actor: str
    via: str
    prune: bool = False

    def named(self, kind: str) -> set[str]:
        """Give the identifiers of a kind that this write names."""
        return {record.identifier for record in self.records if record.kind.name == kind}


def check_all(job: Job, living: Living) -> None:
    """Check every record of a write before any is written. Errors: `CatalogueError`, with the record's line."""
    after = {kind: job.named(kind) | (set() if job.prune else set(rows)) for kind, rows in living.items()}
    for record in job.records:
        row = living.get(record.kind.name, {}).get(record.identifier)
        if record.kind.soft and row is None and not job.complete:
            raise record.error("does not exist", missing=True)
        values = values_of(job, record, row)
        if record.kind.name == "provider":
            _check_provider(record, values, row)
        for field in record.kind.fields.values():
            if field.refers is not None and field.name in values:
                _check_references(record, field, values[field.name], row, living, after[field.refers])


def values_of(job: Job, record: Checked, row: sa.RowMapping | None) -> dict[str, Any]:
    """Give the fields that this write sets and their values. `row` is the stored record, None when it is new.

    Errors: `CatalogueError` for a required field that is missing and one that may not be set on this way.
    """
    whole = job.complete or row is None
    found: dict[str, Any] = {}
    for name, field in record.kind.fields.items():
        value = record.given.get(name)
        if field.local and job.via not in LOCAL_VIAS and _keeps(job, record, field, row):
            continue
        if not whole and name not in record.given:
            continue
        if value is None and field.required:
            raise record.error(f"{name} is missing")
        found[name] = field.default if value is None else value
    return found


def _keeps(job: Job, record: Checked, field: Field, row: sa.RowMapping | None) -> bool:
    """Tell that a field which cannot be set from afar stays as it is; a stored value may be sent back unchanged."""
    value = record.given.get(field.name)
    cleared = field.name in record.given and not job.complete
    if (value is not None or cleared) and (row is None or value != row[field.column]):
        raise record.error(f"{field.name} can be set on the machine itself only")
    return row is not None


def _check_provider(record: Checked, values: Mapping[str, Any], row: sa.RowMapping | None) -> None:
    before = {name: row[name] if row is not None else None for name in ("kind", "base_url", "script")}
    after = before | dict(values)
    if after["kind"] == "openai" and not after["base_url"]:
        raise record.error("kind openai needs base_url")
    if after["kind"] == "scripted" and not after["script"]:
        raise record.error("kind scripted needs script")
    if after["kind"] != "scripted" and record.given.get("script"):
        raise record.error("script is for kind scripted only")
    moved = row is not None and any(after[name] != before[name] for name in ("kind", "base_url"))
    # Else a zone that was declared for one place would silently vouch for another.
    if moved and record.given.get("trust_zone") is None:
        raise record.error("a write that changes kind or base_url must state trust_zone again")


def _check_references(
    record: Checked, field: Field, value: Any, row: sa.RowMapping | None, living: Living, after: set[str]
) -> None:
    kind = str(field.refers)
    for name in (value,) if field.shape is Shape.PLAIN else value:
        if name in after:
            continue
        # A later delete may have left a name dangling. Saying it again is no change, so an export can be applied.
        if row is not None and name not in living[kind] and name in _named_before(field, row):
            continue
        problem = "would be deleted by this write" if name in living[kind] else "does not exist"
        raise record.error(f"{kind} {name} in {field.name} {problem}")


def _named_before(field: Field, row: sa.RowMapping) -> tuple[str, ...]:
    if field.shape is Shape.PLAIN:
        return (row[field.column],)
    return Cells().fallbacks(row) if field.shape is Shape.NAMES else ()
