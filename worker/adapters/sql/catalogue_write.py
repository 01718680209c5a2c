"""Writes of the catalogue: each function is one transaction's work, with its statements, inside of a `Ledger`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from codec.text import dump_json
from codec.vocabulary import Enforcement
from worker.adapters.sql import catalogue_tables
from worker.adapters.sql.catalogue_fields import POLICY, Checked, Field, Kind, Shape, record_name
from worker.adapters.sql.catalogue_ledger import Ledger, Verb
from worker.adapters.sql.catalogue_read import (
    LINKS,
    RECORDS,
    living_links,
    living_rows,
    read_stored_policy,
)
from worker.adapters.sql.catalogue_rules import Job, Living, check_all, values_of
from worker.adapters.sql.catalogue_texts import seal_text, text_field, text_hash
from worker.adapters.sql.clock import read_now
from worker.ports.catalogue import CatalogueError, Written
from worker.ports.sealing import Sealer

__all__ = ["delete_record", "write_records"]

_DECISION: Final = "catalogue_changed"
_WRITE_ORDER: Final = ("provider", "snippet", "skill", "configuration", POLICY, "tool", "egress")
"""Configurations come after what they are linked to by uid, whatever the order of a file."""
_PLAIN: Final = {
    "tool": (catalogue_tables.tool_switch, "name"),
    "egress": (catalogue_tables.egress, "host"),
}
"""Tables of kinds without uids and the column that identifies a row."""


def write_records(conn: sa.Connection, sealer: Sealer, job: Job) -> Written:
    """Write records, all or none. Errors: `CatalogueError` before anything is written."""
    ledger = Ledger(conn, decision=_DECISION, actor=job.actor, via=job.via)
    living: Living = {kind: {row["identifier"]: row for row in living_rows(conn, kind)} for kind in RECORDS}
    check_all(job, living)
    write = _Write(conn, sealer, job, living, ledger)
    for kind in _WRITE_ORDER:
        for record in job.records:
            if record.kind.name == kind:
                write.put(record)
    if job.prune:
        write.prune()
    return ledger.close()


def delete_record(conn: sa.Connection, kind: Kind, identifier: str, *, actor: str, via: str) -> Written:
    """Delete one record: a soft one for good, an operator's switch or host by its row.

    Errors: `CatalogueError` for the policy, which can only be set, and for what does not exist.
    """
    name = record_name(kind.name, identifier)
    if kind.name == POLICY:
        raise CatalogueError(f"{name}: cannot be deleted, only set")
    ledger = Ledger(conn, decision=_DECISION, actor=actor, via=via)
    if not (_end if kind.soft else _remove)(conn, kind.name, identifier):
        raise CatalogueError(f"{name}: does not exist", missing=True)
    ledger.note(Verb.DELETED, name)
    return ledger.close()


def _end(conn: sa.Connection, kind: str, identifier: str) -> bool:
    """End a living record. Guarded by `deleted_at IS NULL`: who comes second finds nothing. Links to it stay."""
    table = RECORDS[kind]
    living = table.c.identifier == identifier, table.c.deleted_at.is_(None)
    query = sa.update(table).where(*living).values(deleted_at=read_now(conn)).returning(table.c.uid)
    return conn.execute(query).scalar_one_or_none() is not None


def _remove(conn: sa.Connection, kind: str, identifier: str) -> bool:
    """Remove a switch or a host by its primary key."""
    table, key = _PLAIN[kind]
    query = sa.delete(table).where(table.c[key] == identifier).returning(table.c[key])
    return conn.execute(query).scalar_one_or_none() is not None


class _Write:
    """The statements of one `write_records`, after its records have been checked."""

    def __init__(self, conn: sa.Connection, sealer: Sealer, job: Job, living: Living, ledger: Ledger) -> None:
        self._conn = conn
        self._sealer = sealer
        self._job = job
        self._living = living
        self._ledger = ledger
        self._uids = {kind: {name: int(row["uid"]) for name, row in rows.items()} for kind, rows in living.items()}
        self._linked = {kind: living_links(conn, kind) for kind in LINKS}

    def put(self, record: Checked) -> None:
        """Write one record, if it changes anything."""
        if record.kind.name == POLICY:
            self._put_policy(record)
        elif not record.kind.soft:
            self._put_plain(record)
        else:
            row = self._living[record.kind.name].get(record.identifier)
            values = values_of(self._job, record, row)
            if row is None:
                self._create(record, values)
            else:
                self._change(record, values, row)

    def prune(self) -> None:
        """Delete what lives and is not named: records, switches and hosts."""
        for kind, rows in self._living.items():
            named = self._job.named(kind)
            for identifier in (name for name in rows if name not in named):
                _end(self._conn, kind, identifier)
                self._ledger.note(Verb.DELETED, record_name(kind, identifier))
        for kind, (table, key) in _PLAIN.items():
            stored = set(self._conn.execute(sa.select(table.c[key])).scalars())
            for identifier in sorted(stored - self._job.named(kind)):
                _remove(self._conn, kind, identifier)
                self._ledger.note(Verb.DELETED, record_name(kind, identifier))

    def _create(self, record: Checked, values: Mapping[str, Any]) -> None:
        """Insert a record. A text is sealed for its row's uid, so the row comes first and the text into it."""
        kind, table = record.kind, RECORDS[record.kind.name]
        columns = _columns(kind, values) | {"identifier": record.identifier}
        if kind.text is None:
            uid = self._insert(table, columns)
        else:
            key = self._sealer.new_key()
            unsealed = {kind.text.column: b"", kind.text.hash_column: "", "key_id": key.key_id}
            uid = self._insert(table, columns | unsealed | {"wrapped_key": key.wrapped})
            sealed = seal_text(self._sealer, key, kind, uid, values[kind.text.name])
            self._conn.execute(sa.update(table).where(table.c.uid == uid).values(sealed))
        self._uids[kind.name][record.identifier] = uid
        for field in _links(kind):
            self._link(uid, field, values[field.name])
        self._note(Verb.CREATED, record, [name for name in values if record.given.get(name) is not None])

    def _insert(self, table: sa.Table, columns: Mapping[str, Any]) -> int:
        return int(self._conn.execute(sa.insert(table).values(columns).returning(table.c.uid)).scalar_one())

    def _change(self, record: Checked, values: Mapping[str, Any], row: sa.RowMapping) -> None:
        """Update what differs, by primary key. An equal text keeps its sealed bytes."""
        kind, table, uid = record.kind, RECORDS[record.kind.name], int(row["uid"])
        fields = {field.column: name for name, field in kind.fields.items()}
        columns = {name: cell for name, cell in _columns(kind, values).items() if cell != row[name]}
        changed = {fields[column] for column in columns}
        text = kind.text
        if text is not None and text.name in values and self._differs(kind, values[text.name], row):
            columns |= seal_text(self._sealer, self._sealer.new_key(), kind, uid, values[text.name])
            changed.add(text.name)
        if columns:
            self._conn.execute(sa.update(table).where(table.c.uid == uid).values(columns))
        changed |= {f.name for f in _links(kind) if f.name in values and self._link(uid, f, values[f.name])}
        if changed:
            self._note(Verb.CHANGED, record, [name for name in kind.fields if name in changed])

    def _differs(self, kind: Kind, text: str, row: sa.RowMapping) -> bool:
        """Tell whether a text must be sealed anew: it is another one, or nobody with this ring can open it."""
        stored = row[text_field(kind).hash_column]
        return stored != text_hash(self._sealer, kind, text) or row["key_id"] not in self._sealer.key_ids

    def _link(self, configuration: int, field: Field, names: tuple[str, ...]) -> bool:
        """Replace the links of a configuration where they differ from the living ones; gives whether they did."""
        kind = str(field.refers)
        table = LINKS[kind]
        uids = tuple(self._uids[kind][name] for name in names)
        if uids == self._linked[kind].get(configuration, ()):
            return False
        self._conn.execute(sa.delete(table).where(table.c.configuration_uid == configuration))
        rows = [
            {"configuration_uid": configuration, "position": position, f"{kind}_uid": uid}
            for position, uid in enumerate(uids)
        ]
        if rows:
            self._conn.execute(sa.insert(table), rows)
        return True

    def _put_policy(self, record: Checked) -> None:
        """Set the switch. A missing row enforces already, so writing `enforce` for the first time changes nothing."""
        table, stored = catalogue_tables.policy, read_stored_policy(self._conn)
        for name, value in values_of(self._job, record, None).items():
            if value == (Enforcement.ENFORCE if stored is None else stored):
                continue
            if stored is None:
                self._conn.execute(sa.insert(table).values(name=name, value=value))
            else:
                self._conn.execute(sa.update(table).where(table.c.name == name).values(value=value))
            self._note(Verb.CHANGED, record, [name])

    def _put_plain(self, record: Checked) -> None:
        """Set a tool's switch or a host's zone. A tool exists in code, so it can be switched without a row."""
        table, key = _PLAIN[record.kind.name]
        same = table.c[key] == record.identifier
        row = self._conn.execute(sa.select(table).where(same)).mappings().one_or_none()
        if row is None and not self._job.complete and record.kind.name != "tool":
            raise record.error("does not exist", missing=True)
        columns = _columns(record.kind, values_of(self._job, record, row))
        if row is None:
            self._conn.execute(sa.insert(table).values(columns | {key: record.identifier}))
            self._note(Verb.CREATED, record, list(columns))
            return
        changed = {name: cell for name, cell in columns.items() if cell != row[name]}
        if changed:
            self._conn.execute(sa.update(table).where(same).values(changed))
            self._note(Verb.CHANGED, record, list(changed))

    def _note(self, verb: Verb, record: Checked, fields: list[str]) -> None:
        self._ledger.note(verb, record.name, fields)


def _columns(kind: Kind, values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the columns of fields that are neither sealed nor links, as they are stored."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        field = kind.fields[name]
        if field.shape is Shape.NAMES:
            found[field.column] = None if value is None else dump_json(value)
        elif field.shape is Shape.PLAIN:
            found[field.column] = value
    return found


def _links(kind: Kind) -> list[Field]:
    return [field for field in kind.fields.values() if field.shape is Shape.LINKS]
