"""The catalogue as people read it: lists, exports, and who would feel a deletion. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from codec.vocabulary import FINAL_STATUSES
from worker.adapters.sql import catalogue_tables, tables
from worker.adapters.sql.catalogue_cells import Cells, declared_class, enforcement_of, trust_zone
from worker.adapters.sql.catalogue_fields import KINDS, POLICY, Field, Kind, Shape
from worker.adapters.sql.catalogue_read import (
    LINKS,
    RECORDS,
    all_rows,
    living_links,
    living_rows,
    read_stored_policy,
)
from worker.adapters.sql.catalogue_texts import open_text
from worker.ports.catalogue import CatalogueError, ListedRecord, RecordSpec
from worker.ports.runs import StoreError
from worker.ports.sealing import Sealer

__all__ = ["read_carrying", "read_export", "read_list"]

# What a list may show besides the identifier: names, classes, zones and switches. The rest is a configuration's
# business, and texts are never here.
_DETAILS: Mapping[str, tuple[str, ...]] = {
    "provider": ("kind", "base_url", "api_key_env", "trust_zone", "max_concurrency", "requests_per_minute"),
    "configuration": ("provider", "model", "prompt_class", "require_second_approver", "max_iterations"),
    "snippet": ("label", "data_class"),
    "skill": ("name", "data_class"),
}
_SHOWN_AS: Mapping[str, str] = {"kind": "provider_kind", "prompt_class": "system_prompt_data_class"}
_SWITCHES: Mapping[str, str] = {"snippet": "active", "skill": "enabled"}


def read_list(conn: sa.Connection) -> list[ListedRecord]:
    """List all records by kind and uid, deleted ones too; opens no text and reads no sealed column."""
    enforcement = enforcement_of(read_stored_policy(conn)).value
    found = [_listed(POLICY, POLICY, {"data_class_enforcement": enforcement})]
    for kind, table in RECORDS.items():
        names = ("uid", "identifier", "deleted_at", *_DETAILS[kind], *filter(None, (_SWITCHES.get(kind),)))
        query = sa.select(*(table.c[name] for name in names)).order_by(table.c.uid)
        found += (_listed_record(kind, row) for row in conn.execute(query).mappings())
    for row in all_rows(conn, catalogue_tables.tool_switch):
        found.append(_listed("tool", row["name"], {"enabled": bool(row["enabled"])}, active=bool(row["enabled"])))
    for row in all_rows(conn, catalogue_tables.egress):
        found.append(_listed("egress", row["host"], {"trust_zone": trust_zone(row["trust_zone"]).value}))
    return found


def read_export(conn: sa.Connection, sealer: Sealer) -> list[RecordSpec]:
    """Give every living record as `apply` takes it: what has its default is left out, and applying changes nothing.

    A stored zone or class that is no known word is given as it is: `apply` refuses it, and a person sees it. A link
    to a deleted record is left out; a provider or fallback that is gone is named, and `apply` lets it stand.
    Errors: `StoreError` when a list or a text of a record cannot be read.
    """
    policy = KINDS[POLICY]
    field = next(iter(policy.fields.values()))
    found = [_spec(policy, POLICY, {field.name: enforcement_of(read_stored_policy(conn)).value})]
    for kind in RECORDS:
        found += _exported(conn, sealer, KINDS[kind])
    for row in all_rows(conn, catalogue_tables.tool_switch):
        found.append(_spec(KINDS["tool"], row["name"], {"enabled": bool(row["enabled"])}))
    for row in all_rows(conn, catalogue_tables.egress):
        found.append(_spec(KINDS["egress"], row["host"], {"trust_zone": row["trust_zone"]}))
    return found


def read_carrying(conn: sa.Connection, kind: str, identifier: str) -> list[str]:
    """Find the runs that are not final and carry or use a living record, oldest first.

    Uses the indexes of sources and of configurations. Errors: `CatalogueError` when there is no such record.
    """
    if kind not in RECORDS:
        return []
    table, run = RECORDS[kind], tables.run
    living = sa.select(table.c.uid).where(table.c.identifier == identifier, table.c.deleted_at.is_(None))
    uid = conn.execute(living).scalar_one_or_none()
    if uid is None:
        raise CatalogueError(f"{kind} {identifier}: does not exist", missing=True)
    query = sa.select(run.c.uuid).where(_uses(kind, identifier, uid), run.c.status.not_in(sorted(FINAL_STATUSES)))
    return list(conn.execute(query.order_by(run.c.uid)).scalars())


def _uses(kind: str, identifier: str, uid: int) -> sa.ColumnElement[bool]:
    run, source, configuration = tables.run, tables.run_source, catalogue_tables.configuration
    if kind in LINKS:
        carried = source.c.kind == kind, source.c.source_uid == uid
        return run.c.uid.in_(sa.select(source.c.run_uid).where(*carried))
    if kind == "configuration":
        return run.c.configuration_uid == uid
    living = configuration.c.provider == identifier, configuration.c.deleted_at.is_(None)
    return run.c.configuration_uid.in_(sa.select(configuration.c.uid).where(*living))


def _listed(kind: str, identifier: str, details: Mapping[str, Any], *, active: bool = True) -> ListedRecord:
    return ListedRecord(kind=kind, identifier=identifier, uid=None, active=active, deleted=False, details=details)


def _listed_record(kind: str, row: sa.RowMapping) -> ListedRecord:
    deleted = row["deleted_at"] is not None
    details = {_SHOWN_AS.get(name, name): _shown(name, row[name]) for name in _DETAILS[kind]}
    return ListedRecord(
        kind=kind,
        identifier=row["identifier"],
        uid=row["uid"],
        active=not deleted and bool(row[_SWITCHES[kind]] if kind in _SWITCHES else True),
        deleted=deleted,
        details=details,
    )


def _shown(name: str, cell: Any) -> Any:
    """Show classes and zones as the gate reads them, not as somebody may have written them."""
    if name in ("data_class", "prompt_class"):
        found = declared_class(cell)
        return None if found is None else found.value
    return trust_zone(cell).value if name == "trust_zone" else cell


def _exported(conn: sa.Connection, sealer: Sealer, kind: Kind) -> Iterator[RecordSpec]:
    linked: dict[str, dict[int, tuple[int, ...]]] = {}
    named: dict[str, dict[int, str]] = {}
    for field in kind.fields.values():
        if field.shape is Shape.LINKS and field.refers is not None:
            linked[field.name] = living_links(conn, field.refers)
            named[field.name] = {row["uid"]: row["identifier"] for row in living_rows(conn, field.refers)}
    for row in living_rows(conn, kind.name, sealed=True):
        fields: dict[str, Any] = {}
        for field in kind.fields.values():
            if field.shape is Shape.TEXT:
                fields[field.name] = open_text(sealer, kind, row)
            elif field.shape is Shape.LINKS:
                uids = linked[field.name].get(row["uid"], ())
                fields[field.name] = tuple(named[field.name][uid] for uid in uids)
            else:
                fields[field.name] = _stored(kind, field, row)
        yield _spec(kind, row["identifier"], fields)


def _stored(kind: Kind, field: Field, row: sa.RowMapping) -> Any:
    cell = row[field.column]
    if field.shape is not Shape.NAMES or cell is None:
        return cell or None if field.default is None else cell
    cells = Cells()
    found = cells.names(row, field.column) if field.refers is None else cells.fallbacks(row)
    if not cells.readable:
        raise StoreError(f"{field.name} of {kind.name} {row['identifier']} cannot be read")
    return found


def _spec(kind: Kind, identifier: str, fields: Mapping[str, Any]) -> RecordSpec:
    kept = {
        name: value
        for name, value in fields.items()
        if value is not None and (kind.fields[name].always or value != kind.fields[name].default)
    }
    return RecordSpec(kind=kind.name, identifier=identifier, fields=kept)
