"""The catalogue as runs read it. Each function runs on one database snapshot, and none writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from codec.actor import LiveActor
from codec.catalogue import CatalogueSnapshot, ConfigurationRecord, SkillRecord, SnippetRecord
from codec.facts import EgressFacts, ProviderFacts, SourceText
from codec.vocabulary import SourceKind
from worker.adapters.sql import catalogue_tables
from worker.adapters.sql.catalogue_cells import (
    Cells,
    declared_class,
    enforcement_of,
    readable_class,
    trust_zone,
)
from worker.adapters.sql.catalogue_fields import KINDS, POLICY
from worker.adapters.sql.catalogue_texts import open_text
from worker.adapters.sql.keys import is_behind
from worker.ports.runs import StoreError
from worker.ports.sealing import Sealer

__all__ = [
    "LINKS",
    "RECORDS",
    "all_rows",
    "living_links",
    "living_rows",
    "read_snapshot",
    "read_stored_policy",
    "read_texts",
    "read_version",
]

RECORDS: Final[Mapping[str, sa.Table]] = {
    "provider": catalogue_tables.provider,
    "configuration": catalogue_tables.configuration,
    "snippet": catalogue_tables.snippet,
    "skill": catalogue_tables.skill,
}
LINKS: Final[Mapping[str, sa.Table]] = {
    "snippet": catalogue_tables.configuration_snippet,
    "skill": catalogue_tables.configuration_skill,
}
_VERSION: Final = sa.select(catalogue_tables.catalogue_version.c.version).where(
    catalogue_tables.catalogue_version.c.id == 1
)
"""Built once: making a statement costs as much as running it."""
_TEXT_ONLY: Final = frozenset({"prompt", "text", "body", "wrapped_key"})


def read_version(conn: sa.Connection) -> int:
    """Read the version by its primary key; locks nothing. Errors: `StoreError` in a database without the row."""
    found = conn.execute(_VERSION).scalar_one_or_none()
    if found is None:
        raise StoreError("the catalogue has no version")
    return int(found)


def read_stored_policy(conn: sa.Connection) -> object:
    """Read the switch as stored, None when it is not."""
    table = catalogue_tables.policy
    name = next(iter(KINDS[POLICY].fields))
    return conn.execute(sa.select(table.c.value).where(table.c.name == name)).scalar_one_or_none()


def living_rows(conn: sa.Connection, kind: str, *, sealed: bool = False) -> Sequence[sa.RowMapping]:
    """Read the living records of a kind by uid, through the partial index of the living; sealed columns if asked."""
    return conn.execute(_living(kind, sealed)).mappings().all()


@cache
def _living(kind: str, sealed: bool) -> sa.Select[Any]:
    table = RECORDS[kind]
    columns = [column for column in table.c if sealed or column.name not in _TEXT_ONLY]
    return sa.select(*columns).where(table.c.deleted_at.is_(None)).order_by(table.c.uid)


def living_links(conn: sa.Connection, kind: str) -> dict[int, tuple[int, ...]]:
    """Read the uids of living records that each configuration is linked to, in its order. Deleted ones are dropped."""
    found: dict[int, list[int]] = {}
    for configuration, linked in conn.execute(_links(kind)):
        found.setdefault(configuration, []).append(linked)
    return {configuration: tuple(uids) for configuration, uids in found.items()}


@cache
def _links(kind: str) -> sa.Select[int, int]:
    link, other = LINKS[kind], RECORDS[kind]
    uid = link.c[f"{kind}_uid"]
    return (
        sa.select(link.c.configuration_uid, uid)
        .join(other, other.c.uid == uid)
        .where(other.c.deleted_at.is_(None))
        .order_by(link.c.configuration_uid, link.c.position)
    )


def read_snapshot(conn: sa.Connection, known: CatalogueSnapshot | None) -> CatalogueSnapshot:
    """Read everything living, or give `known` back when nothing was written since."""
    version = read_version(conn)
    if known is not None and known.version == version:
        return known
    cells = Cells()
    providers = {row["uid"]: _provider(cells, row) for row in living_rows(conn, "provider")}
    return CatalogueSnapshot(
        version=version,
        enforcement=enforcement_of(read_stored_policy(conn)),
        providers=providers,
        configurations=_configurations(conn, cells, {p.identifier: p.uid for p in providers.values()}),
        snippets={row["uid"]: _snippet(cells, row) for row in living_rows(conn, "snippet")},
        skills={row["uid"]: _skill(cells, row) for row in living_rows(conn, "skill")},
        tool_switches={row["name"]: bool(row["enabled"]) for row in all_rows(conn, catalogue_tables.tool_switch)},
        egress=tuple(_egress(cells, row) for row in all_rows(conn, catalogue_tables.egress)),
        actors={row["name"]: _actor(cells, row) for row in all_rows(conn, catalogue_tables.actor)},
        readable=cells.readable,  # last: arguments are evaluated in their order
    )


def read_texts(
    conn: sa.Connection, sealer: Sealer, configuration: int, snippets: Sequence[int], skills: Sequence[int]
) -> tuple[int, tuple[SourceText, ...]]:
    """Open the texts that assembly may inject, with the version they belong to.

    Errors: `StoreError`: `unreadable`, or `key_behind` when it is only this process that lacks the key.
    """
    try:
        texts = tuple(_texts(conn, sealer, configuration, snippets, skills))
    except StoreError:
        if is_behind(conn, sealer.key_ids):
            raise StoreError("key_behind") from None
        raise
    return read_version(conn), texts  # read last: it may be of later texts, and never of earlier ones


def _texts(
    conn: sa.Connection, sealer: Sealer, configuration: int, snippets: Sequence[int], skills: Sequence[int]
) -> Iterator[SourceText]:
    for row in _by_uid(conn, "configuration", (configuration,)).values():
        if row["prompt_hash"]:
            text = open_text(sealer, KINDS["configuration"], row)
            yield _source(SourceKind.SYSTEM_PROMPT, row, row["identifier"], text, row["prompt_hash"])
    for kind, source, uids, label in (
        ("snippet", SourceKind.SNIPPET, snippets, "label"),
        ("skill", SourceKind.SKILL, skills, "name"),
    ):
        rows = _by_uid(conn, kind, uids)
        for row in (rows[uid] for uid in uids if uid in rows):
            text = open_text(sealer, KINDS[kind], row)
            yield _source(source, row, row[label] or row["identifier"], text, row["text_hash"])


def all_rows(conn: sa.Connection, table: sa.Table) -> Sequence[sa.RowMapping]:
    """Read a small table whole, by its primary key."""
    return conn.execute(_whole(table)).mappings().all()


@cache
def _whole(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).order_by(*table.primary_key)


def _by_uid(conn: sa.Connection, kind: str, uids: Sequence[int]) -> dict[int, sa.RowMapping]:
    """Read living rows with their sealed texts by primary key."""
    table = RECORDS[kind]
    query = sa.select(table).where(table.c.uid.in_(sorted(set(uids))), table.c.deleted_at.is_(None))
    return {row["uid"]: row for row in conn.execute(query).mappings()} if uids else {}


def _provider(cells: Cells, row: sa.RowMapping) -> ProviderFacts:
    return ProviderFacts(
        uid=row["uid"],
        identifier=cells.text(row, "identifier"),
        kind=cells.text(row, "kind"),
        zone=trust_zone(row["trust_zone"]),
        base_url=cells.optional_text(row, "base_url"),
        api_key_env=cells.optional_text(row, "api_key_env"),
        script=cells.optional_text(row, "script"),
        max_concurrency=cells.number(row, "max_concurrency"),
        requests_per_minute=cells.number(row, "requests_per_minute"),
    )


def _configurations(conn: sa.Connection, cells: Cells, providers: dict[str, int]) -> dict[int, ConfigurationRecord]:
    snippets, skills = living_links(conn, "snippet"), living_links(conn, "skill")
    return {
        row["uid"]: ConfigurationRecord(
            uid=row["uid"],
            identifier=cells.text(row, "identifier"),
            provider=providers.get(row["provider"]),
            model=cells.text(row, "model"),
            has_prompt=row["prompt_hash"] != "",
            prompt_hash=cells.text(row, "prompt_hash"),
            prompt_class=declared_class(row["prompt_class"]),
            snippets=snippets.get(row["uid"], ()),
            skills=skills.get(row["uid"], ()),
            fallbacks=cells.fallbacks(row),
            allowed_tool_groups=cells.names(row, "allowed_tool_groups"),
            require_second_approver=bool(row["require_second_approver"]),
            approval_ttl_s=cells.number(row, "approval_ttl_s"),
            max_iterations=cells.number(row, "max_iterations"),
            max_total_tokens=cells.number(row, "max_total_tokens"),
            max_duration_s=cells.number(row, "max_duration_s"),
            context_length=cells.number(row, "context_length"),
        )
        for row in living_rows(conn, "configuration")
    }


def _snippet(cells: Cells, row: sa.RowMapping) -> SnippetRecord:
    return SnippetRecord(
        uid=row["uid"],
        identifier=cells.text(row, "identifier"),
        label=cells.text(row, "label") or row["identifier"],
        text_hash=cells.text(row, "text_hash"),
        declared=declared_class(row["data_class"]),
        active=bool(row["active"]),
    )


def _skill(cells: Cells, row: sa.RowMapping) -> SkillRecord:
    return SkillRecord(
        uid=row["uid"],
        identifier=cells.text(row, "identifier"),
        name=cells.text(row, "name") or row["identifier"],
        text_hash=cells.text(row, "text_hash"),
        declared=declared_class(row["data_class"]),
        active=bool(row["enabled"]),
        allowed_tools=cells.optional_names(row, "allowed_tools"),
    )


def _egress(cells: Cells, row: sa.RowMapping) -> EgressFacts:
    return EgressFacts(host=cells.text(row, "host"), zone=trust_zone(row["trust_zone"]))


def _actor(cells: Cells, row: sa.RowMapping) -> LiveActor:
    return LiveActor(
        kind=cells.actor_kind(row),
        name=cells.text(row, "name"),
        uid=row["uid"],
        enabled=bool(row["enabled"]),
        admin=bool(row["admin"]),
        groups=cells.names(row, "groups"),
        grants=cells.names(row, "grants"),
        scopes=cells.names(row, "scopes"),
        max_class=readable_class(row["max_class"]),
    )


def _source(kind: SourceKind, row: sa.RowMapping, label: str, text: str, text_hash: str) -> SourceText:
    return SourceText(kind=kind, uid=row["uid"], label=label, text=text, text_hash=text_hash)
