"""The port `Catalogue`: one suite for every database that it runs on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from codec.catalogue import CatalogueSnapshot, ConfigurationRecord
from codec.facts import SourceText
from codec.vocabulary import ActorKind, DeclaredClass, Enforcement, RunStatus, SourceKind, TrustZone
from tests.support.stores import DATABASES, open_database
from worker.adapters.sealing import KeyRing, RingSealer
from worker.adapters.sql import catalogue_tables, tables
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.engine import Database
from worker.ports.catalogue import Catalogue, CatalogueError, RecordSpec, Written
from worker.ports.runs import StoreError

MARKER = "xyzzy-plugh-4711"


def new_sealer(key_id: str = "k1") -> RingSealer:
    """Make a sealer of one ring key; hashes are the same for all of them, as after a rotation."""
    return RingSealer(KeyRing(keys={key_id: os.urandom(32)}, active=key_id, subkey=b"s" * 32))


@dataclass
class World:
    """A catalogue and, beside the port, its database as a tamperer or an auditor sees it."""

    catalogue: Catalogue
    database: Database
    sealer: RingSealer
    file: Path | None
    details_read: int = field(default=0)

    async def apply(self, *specs: RecordSpec, prune: bool = False, via: str = "cli") -> Written:
        return await self.catalogue.apply(specs, prune=prune, actor="local", via=via)

    async def change(self, kind: str, identifier: str, /, via: str = "cli", **fields: Any) -> Written:
        spec = RecordSpec(kind=kind, identifier=identifier, fields=fields)
        return await self.catalogue.change(spec, actor="local", via=via)

    async def delete(self, kind: str, identifier: str) -> Written:
        return await self.catalogue.delete(kind, identifier, actor="local", via="cli")

    async def run(self, statement: sa.Executable) -> None:
        def execute(conn: sa.Connection) -> None:
            conn.execute(statement)

        await self.database.transact(execute)

    async def rows(self, statement: sa.Select[Any]) -> list[sa.RowMapping]:
        return await self.database.read(lambda conn: list(conn.execute(statement).mappings()))

    async def row(self, table: sa.Table, identifier: str) -> sa.RowMapping:
        found = await self.rows(sa.select(table).where(table.c.identifier == identifier))
        return found[-1]

    async def set(self, table: sa.Table, **cells: Any) -> None:
        await self.run(sa.update(table).values(**cells))

    async def audit(self) -> list[str]:
        """Give the details of the rows that are new since the last call."""
        rows = await self.rows(sa.select(tables.audit).order_by(tables.audit.c.uid))
        new, self.details_read = rows[self.details_read :], len(rows)
        return [row["detail"] for row in new]


@pytest.fixture(params=DATABASES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with open_database(request.param, tmp_path) as database:
        sealer = new_sealer()
        file = tmp_path / "runs.db" if request.param == "sqlite" else None
        yield World(SqlCatalogue(database, sealer), database, sealer, file)


def provider(identifier: str = "house", line: int | None = None, **fields: Any) -> RecordSpec:
    given = {"kind": "openai", "base_url": "http://127.0.0.1:8080/v1", "trust_zone": "local"} | fields
    return RecordSpec(kind="provider", identifier=identifier, fields=given, line=line)


def configuration(identifier: str = "support", line: int | None = None, **fields: Any) -> RecordSpec:
    given = {"provider": "house", "model": "some-model"} | fields
    return RecordSpec(kind="configuration", identifier=identifier, fields=given, line=line)


def snippet(identifier: str = "tone", line: int | None = None, **fields: Any) -> RecordSpec:
    return RecordSpec(kind="snippet", identifier=identifier, fields={"text": "Be kind."} | fields, line=line)


def skill(identifier: str = "refunds", line: int | None = None, **fields: Any) -> RecordSpec:
    return RecordSpec(kind="skill", identifier=identifier, fields={"body": "Pay back."} | fields, line=line)


def record(kind: str, identifier: str, **fields: Any) -> RecordSpec:
    return RecordSpec(kind=kind, identifier=identifier, fields=fields)


EVERYTHING = (
    record("policy", "policy", data_class_enforcement="observe"),
    provider(api_key_env="REGATE_KEY_HOUSE", max_concurrency=64, requests_per_minute=600),
    provider("stand-in", kind="scripted", base_url=None, script="/srv/script.toml", trust_zone="external_eu"),
    configuration(
        system_prompt="You answer.\r\nAlways.",
        system_prompt_data_class="editor_content",
        snippets=["tone", "incident-report"],
        skills=["refunds"],
        fallbacks=["support-eu"],
        allowed_tool_groups=["orders"],
        require_second_approver=True,
        approval_ttl_s=60,
        max_iterations=200,
        max_total_tokens=2**40,
        max_duration_s=30,
        context_length=8000,
    ),
    configuration("support-eu", provider="stand-in"),
    snippet(label="Tone"),
    snippet("incident-report", label="Incident", text="It broke.", data_class="secret_adjacent", active=False),
    skill(name="Refund rules", data_class="internal_configuration", allowed_tools=["lookup_order"]),
    skill("empty", body="", enabled=False, allowed_tools=[]),
    record("tool", "post_json", enabled=False),
    record("egress", "tickets.example", trust_zone="private_hosted"),
)


def by_identifier(snapshot: CatalogueSnapshot) -> Mapping[str, Any]:
    """Give everything living by identifiers instead of uids, so that two catalogues can be compared."""
    named = {
        "snippets": {r.uid: r.identifier for r in snapshot.snippets.values()},
        "skills": {r.uid: r.identifier for r in snapshot.skills.values()},
    }
    plain: dict[str, Any] = msgspec.to_builtins(snapshot)
    del plain["version"]
    providers = {p.uid: p.identifier for p in snapshot.providers.values()}
    for table in ("providers", "configurations", "snippets", "skills"):
        rows = {row["identifier"]: row for row in plain.get(table, {}).values()}
        for row in rows.values():
            del row["uid"]
            row["provider"] = providers.get(row.get("provider"))
            for links, names in named.items():
                row[links] = [names[uid] for uid in row.get(links, ())]
        plain[table] = rows
    return plain


# --- apply ----------------------------------------------------------------------------------------------------


async def test_everything_is_read_back_as_it_was_applied(world: World) -> None:
    """One apply of all kinds is one version; each field arrives in the snapshot."""
    written = await world.apply(*EVERYTHING)

    snapshot = await world.catalogue.snapshot()
    assert 2 == written.version == snapshot.version
    assert "configuration support" in written.created
    assert ("policy",) == written.changed
    assert snapshot.readable
    assert Enforcement.OBSERVE is snapshot.enforcement
    house, stand_in = snapshot.providers.values()
    assert ("house", "openai", TrustZone.LOCAL, "REGATE_KEY_HOUSE", 64, 600) == (
        house.identifier,
        house.kind,
        house.zone,
        house.api_key_env,
        house.max_concurrency,
        house.requests_per_minute,
    )
    assert ("scripted", None, "/srv/script.toml") == (stand_in.kind, stand_in.base_url, stand_in.script)
    tone, incident = snapshot.snippets.values()
    refunds, empty = snapshot.skills.values()
    assert ("Tone", True, None) == (tone.label, tone.active, tone.declared)
    assert (False, DeclaredClass.SECRET_ADJACENT) == (incident.active, incident.declared)
    assert ("Refund rules", ("lookup_order",)) == (refunds.name, refunds.allowed_tools)
    assert (False, ()) == (empty.active, empty.allowed_tools)
    support, europe = snapshot.configurations.values()
    expected = ConfigurationRecord(
        uid=support.uid,
        identifier="support",
        provider=house.uid,
        model="some-model",
        has_prompt=True,
        prompt_hash=world.sealer.keyed_hash("text", b"You answer.\r\nAlways."),
        prompt_class=DeclaredClass.EDITOR_CONTENT,
        snippets=(tone.uid, incident.uid),
        skills=(refunds.uid,),
        fallbacks=("support-eu",),
        allowed_tool_groups=("orders",),
        require_second_approver=True,
        approval_ttl_s=60,
        max_iterations=200,
        max_total_tokens=2**40,
        max_duration_s=30,
        context_length=8000,
    )
    assert expected == support
    assert stand_in.uid == europe.provider
    assert {"post_json": False} == snapshot.tool_switches
    assert [("tickets.example", TrustZone.PRIVATE_HOSTED)] == [(e.host, e.zone) for e in snapshot.egress]


async def test_a_field_left_out_has_the_default_of_the_codec(world: World) -> None:
    """Defaults are the ones that the record's own definition has."""
    await world.apply(provider(), configuration(), snippet(), skill())

    snapshot = await world.catalogue.snapshot()
    (found,) = snapshot.configurations.values()
    bare = ConfigurationRecord(
        uid=found.uid, identifier="support", provider=1, model="some-model", has_prompt=False, prompt_hash=""
    )
    assert bare == found
    (tone,) = snapshot.snippets.values()
    (refunds,) = snapshot.skills.values()
    assert ("tone", True, None) == (tone.label, tone.active, tone.declared)
    assert ("refunds", True, None, None) == (refunds.name, refunds.active, refunds.declared, refunds.allowed_tools)
    assert Enforcement.ENFORCE is snapshot.enforcement


async def test_a_provider_without_a_zone_is_the_least_trusted(world: World) -> None:
    """Saying nothing about a zone never opens anything."""
    await world.apply(provider(trust_zone=None), record("egress", "h.example"))

    snapshot = await world.catalogue.snapshot()
    assert [TrustZone.EXTERNAL_GLOBAL] == [p.zone for p in snapshot.providers.values()]
    assert [TrustZone.EXTERNAL_GLOBAL] == [e.zone for e in snapshot.egress]


@pytest.mark.parametrize("seed", range(5))
async def test_the_order_of_a_file_does_not_matter(world: World, seed: int) -> None:
    """What is named may stand after what names it."""
    await world.apply(*EVERYTHING)
    expected = by_identifier(await world.catalogue.snapshot())
    shuffled = list(EVERYTHING)
    random.Random(seed).shuffle(shuffled)
    other = Database.open("sqlite://")
    await other.create_all()
    catalogue = SqlCatalogue(other, world.sealer)

    await catalogue.apply(shuffled, prune=False, actor="local", via="cli")

    assert expected == by_identifier(await catalogue.snapshot())
    await other.close()


async def test_applying_the_same_again_changes_nothing(world: World) -> None:
    """No version, no audit row, no new sealed bytes."""
    await world.apply(*EVERYTHING)
    await world.audit()
    before = await world.row(catalogue_tables.configuration, "support")

    written = await world.apply(*EVERYTHING)

    assert Written(version=2) == written
    assert [] == await world.audit()
    assert before == await world.row(catalogue_tables.configuration, "support")


async def test_apply_is_declarative_per_record(world: World) -> None:
    """A field that is left out goes back to its default; other records stay."""
    await world.apply(*EVERYTHING)

    written = await world.apply(configuration(system_prompt="You answer.\r\nAlways."))

    snapshot = await world.catalogue.snapshot()
    support = next(c for c in snapshot.configurations.values() if c.identifier == "support")
    assert ("configuration support",) == written.changed
    assert ((), (), (), (), 10) == (
        support.snippets,
        support.skills,
        support.fallbacks,
        support.allowed_tool_groups,
        support.max_iterations,
    )
    assert 2 == len(snapshot.snippets)


async def test_the_audit_names_fields_and_never_values(world: World) -> None:
    """Each record has one row with who, which way, what became of it, and the fields."""
    await world.apply(provider(max_concurrency=3), configuration(system_prompt=MARKER, max_iterations=7))
    created = await world.rows(sa.select(tables.audit).order_by(tables.audit.c.uid))
    await world.audit()
    await world.apply(configuration(system_prompt=MARKER + "!", max_iterations=8))
    await world.change("policy", "policy", data_class_enforcement="observe")
    await world.delete("configuration", "support")

    assert [
        ("catalogue_changed", "local", "cli", "created provider house: kind, base_url, trust_zone, max_concurrency"),
        (
            "catalogue_changed",
            "local",
            "cli",
            "created configuration support: provider, model, system_prompt, max_iterations",
        ),
    ] == [(row["decision"], row["actor"], row["via"], row["detail"]) for row in created]
    assert all(row["at"] > 1e9 for row in created)
    assert [
        "changed configuration support: system_prompt, max_iterations",
        "changed policy: data_class_enforcement",
        "deleted configuration support",
    ] == await world.audit()


async def test_one_bad_record_of_many_leaves_everything_as_it_was(world: World) -> None:
    """An apply is all or nothing, and the refusal has the record's line."""
    await world.apply(*EVERYTHING)
    await world.audit()
    before = await world.catalogue.snapshot()

    with pytest.raises(CatalogueError) as refused:
        await world.apply(provider("new"), snippet(text="changed"), configuration("bad", line=41, snippets=["nowhere"]))

    assert 41 == refused.value.line
    assert "line 41: configuration bad: snippet nowhere in snippets does not exist" == str(refused.value)
    assert before == await world.catalogue.snapshot(None)
    assert [] == await world.audit()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"provider": "nowhere"}, "provider nowhere in provider does not exist"),
        ({"snippets": ["tone", "nowhere"]}, "snippet nowhere in snippets does not exist"),
        ({"skills": ["nowhere"]}, "skill nowhere in skills does not exist"),
        ({"fallbacks": ["nowhere"]}, "configuration nowhere in fallbacks does not exist"),
    ],
)
async def test_what_a_configuration_names_must_live(world: World, fields: dict[str, Any], problem: str) -> None:
    """At apply and at change alike."""
    await world.apply(provider(), configuration(), snippet())

    with pytest.raises(CatalogueError) as applied:
        await world.apply(configuration(line=3, **fields))
    with pytest.raises(CatalogueError) as changed:
        await world.change("configuration", "support", **fields)

    assert f"configuration support: {problem}" == applied.value.problem == changed.value.problem
    assert (3, None) == (applied.value.line, changed.value.line)
    assert not applied.value.missing


async def test_a_deleted_record_cannot_be_named(world: World) -> None:
    """Deleted is as if it had never been."""
    await world.apply(provider(), snippet())
    await world.delete("snippet", "tone")

    with pytest.raises(CatalogueError, match="snippet tone in snippets does not exist"):
        await world.apply(configuration(snippets=["tone"]))


async def test_a_record_named_twice_is_refused(world: World) -> None:
    """With the line of the second one; one name may stand under two kinds."""
    with pytest.raises(CatalogueError, match="line 9: snippet tone: is named twice"):
        await world.apply(snippet(line=3), skill("tone", line=6), snippet(line=9))


# --- values ---------------------------------------------------------------------------------------------------

BAD_VALUES = [
    ("provider", {"kind": "anthropic"}),
    ("provider", {"kind": MARKER}),
    ("provider", {"trust_zone": "mars"}),
    ("provider", {"trust_zone": " local"}),
    ("provider", {"trust_zone": ""}),
    ("provider", {"trust_zone": 1}),
    ("provider", {"base_url": "ftp://h/v1"}),
    ("provider", {"base_url": "http://"}),
    ("provider", {"base_url": f"http://user:{MARKER}@h/v1"}),
    ("provider", {"base_url": f"http://h/v1?key={MARKER}"}),
    ("provider", {"base_url": "http://h/v1#x"}),
    ("provider", {"base_url": "http://h:99999/"}),
    ("provider", {"base_url": "http://h/a b"}),
    ("provider", {"base_url": "http://h/\n"}),
    ("provider", {"api_key_env": "PATH"}),
    ("provider", {"api_key_env": "REGATE_KEY_"}),
    ("provider", {"api_key_env": "regate_key_house"}),
    ("provider", {"api_key_env": "REGATE_KEY_A B"}),
    ("provider", {"max_concurrency": -1}),
    ("provider", {"max_concurrency": True}),
    ("provider", {"max_concurrency": 1.0}),
    ("provider", {"max_concurrency": 2**31}),
    ("provider", {"requests_per_minute": "600"}),
    ("provider", {"script": "relative.toml"}),
    ("provider", {"colour": MARKER}),
    ("configuration", {"provider": "House"}),
    ("configuration", {"provider": ""}),
    ("configuration", {"model": ""}),
    ("configuration", {"model": 5}),
    ("configuration", {"model": "a\nb"}),
    ("configuration", {"system_prompt": 5}),
    ("configuration", {"system_prompt_data_class": "secret"}),
    ("configuration", {"system_prompt_data_class": "unreadable"}),
    ("configuration", {"system_prompt_data_class": ""}),
    ("configuration", {"snippets": "tone"}),
    ("configuration", {"snippets": ["Tone"]}),
    ("configuration", {"skills": [7]}),
    ("configuration", {"fallbacks": ["a b"]}),
    ("configuration", {"fallbacks": [7]}),
    ("configuration", {"allowed_tool_groups": [""]}),
    ("configuration", {"allowed_tool_groups": [" orders"]}),
    ("configuration", {"require_second_approver": "yes"}),
    ("configuration", {"require_second_approver": 1}),
    ("configuration", {"approval_ttl_s": -1}),
    ("configuration", {"max_iterations": 0}),
    ("configuration", {"max_iterations": 201}),
    ("configuration", {"max_total_tokens": 2**63}),
    ("configuration", {"max_duration_s": 0.5}),
    ("configuration", {"context_length": -1}),
    ("snippet", {"data_class": "Secret_Adjacent"}),
    ("snippet", {"text": ["a"]}),
    ("snippet", {"text": "x" * (4 * 1024 * 1024 + 1)}),
    ("snippet", {"label": "x" * 201}),
    ("snippet", {"active": 0}),
    ("snippet", {"body": MARKER}),
    ("skill", {"allowed_tools": ["a.b"]}),
    ("skill", {"enabled": "false"}),
    ("policy", {"data_class_enforcement": "observ"}),
    ("policy", {"data_class_enforcement": ""}),
    ("policy", {"data_class_enforcement": False}),
    ("policy", {"data_class_enforcement": ["observe"]}),
    ("policy", {"mode": "observe"}),
    ("tool", {"enabled": "no"}),
    ("tool", {"effect": "read_only"}),
    ("egress", {"trust_zone": "lokal"}),
]
MAKE: dict[str, Callable[..., RecordSpec]] = {
    "provider": provider,
    "configuration": configuration,
    "snippet": snippet,
    "skill": skill,
    "policy": lambda **fields: record("policy", "policy", **fields),
    "tool": lambda **fields: record("tool", "post_json", **fields),
    "egress": lambda **fields: record("egress", "h.example", **fields),
}


@pytest.mark.parametrize("world", ["memory"], indirect=True)  # refused before any database is asked
@pytest.mark.parametrize(("kind", "fields"), BAD_VALUES)
async def test_a_value_that_is_not_known_is_refused(world: World, kind: str, fields: dict[str, Any]) -> None:
    """At apply and at change; the refusal names the field and shows no value."""
    base = [provider(), snippet(), skill(), configuration(), record("egress", "h.example")]
    await world.apply(*base)
    name = next(iter(fields))
    spec = MAKE[kind](**fields)

    for attempt in (world.apply(spec), world.change(kind, spec.identifier, **fields)):
        with pytest.raises(CatalogueError) as refused:
            await attempt

        assert name in str(refused.value)
        assert MARKER not in str(refused.value)
    assert 2 == (await world.catalogue.snapshot()).version


@pytest.mark.parametrize("world", ["memory"], indirect=True)  # refused before any database is asked
@pytest.mark.parametrize(
    ("kind", "identifier"),
    [
        ("provider", ""),
        ("provider", "House"),
        ("snippet", "a" * 65),
        ("skill", "a b"),
        ("skill", "ä"),
        ("snippet", "tone\n"),
        ("tool", "a.b"),
        ("tool", "x" * 65),
        ("policy", "other"),
        ("egress", ""),
        ("egress", "http://h"),
        ("egress", "h/path"),
        ("egress", "h:0"),
        ("egress", "h:65536"),
        ("egress", "-h.example"),
        ("egress", "h..example"),
        ("egress", "127.1"),
        ("egress", "0x7f.1"),
        ("egress", "300.0.0.1"),
        ("egress", "*.example"),
        ("egress", "user@h"),
        ("egress", "[::1"),
        ("egress", "fe80::1%eth0"),
        ("egress", "bücher.example"),
        ("user", "x"),
        (MARKER * 9, "x"),
    ],
)
async def test_an_identifier_that_cannot_be_is_refused(world: World, kind: str, identifier: str) -> None:
    """Every write and `carrying` check it, so none ever reaches a statement."""
    for attempt in (
        world.apply(record(kind, identifier)),
        world.change(kind, identifier),
        world.delete(kind, identifier),
        world.catalogue.carrying(kind, identifier),
    ):
        with pytest.raises(CatalogueError) as refused:
            await attempt

        assert MARKER not in str(refused.value)
        assert not refused.value.missing


@pytest.mark.parametrize(
    ("host", "stored"),
    [
        ("Tickets.Example", "tickets.example"),
        (" tickets.example:443 ", "tickets.example:443"),
        ("tickets.example:0443", "tickets.example:443"),
        ("my_service", "my_service"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("::1", "::1"),
        ("[0:0::1]", "::1"),
        ("[2001:DB8::1]:8080", "[2001:db8::1]:8080"),
    ],
)
async def test_a_host_has_one_spelling(world: World, host: str, stored: str) -> None:
    """However it is written, so that a look-up can compare."""
    await world.apply(record("egress", host, trust_zone="local"))

    assert [stored] == [entry.host for entry in (await world.catalogue.snapshot()).egress]


@pytest.mark.parametrize("value", ["observe", "OBSERVE ", " Observe\n"])
async def test_the_switch_is_taken_in_any_case(world: World, value: str) -> None:
    """T45, the writing half: trimmed and in any case."""
    await world.change("policy", "policy", data_class_enforcement=value)

    assert Enforcement.OBSERVE is (await world.catalogue.snapshot()).enforcement


async def test_a_chain_is_normalised_when_written(world: World) -> None:
    """T42: trimmed, lower-cased, de-duplicated, blanks dropped."""
    await world.apply(provider(), configuration("a"), configuration("b", fallbacks=[" A ", "a", "", "B"]))

    snapshot = await world.catalogue.snapshot()
    assert ("a", "b") == next(c for c in snapshot.configurations.values() if c.identifier == "b").fallbacks


async def test_texts_are_cleaned(world: World) -> None:
    """NUL and lone surrogates never get into the store."""
    await world.apply(snippet(text="a\x00b\ud800c", label="x"))

    _, (text,) = await world.catalogue.texts(1, [1], [])
    assert "a\ufffdb\ufffdc" == text.text


# --- rules of providers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"base_url": None}, "kind openai needs base_url"),
        ({"kind": "scripted", "base_url": None}, "kind scripted needs script"),
        ({"script": "/srv/s.toml"}, "script is for kind scripted only"),
        ({"kind": None}, "kind cannot be cleared"),
    ],
)
async def test_a_kind_has_what_it_needs(world: World, fields: dict[str, Any], problem: str) -> None:
    """A provider that could not be sent to is not stored."""
    with pytest.raises(CatalogueError, match=f"provider house: {problem}"):
        await world.apply(provider(**fields))


@pytest.mark.parametrize(("kind", "missing"), [("provider", "kind"), ("configuration", "provider")])
async def test_a_required_field_must_be_given(world: World, kind: str, missing: str) -> None:
    """Nothing is guessed where there is no default."""
    with pytest.raises(CatalogueError, match=f"{kind} x: {missing} is missing"):
        await world.apply(record(kind, "x"))


async def test_moving_a_provider_needs_its_zone_again(world: World) -> None:
    """A zone that was declared for one place never vouches for another."""
    await world.apply(provider())
    elsewhere: dict[str, Any] = {"base_url": "https://api.example/v1"}
    scripted: dict[str, Any] = {"kind": "scripted", "script": "/srv/s.toml"}

    for attempt in (
        world.change("provider", "house", **elsewhere),
        world.change("provider", "house", **scripted),
        world.change("provider", "house", **elsewhere, trust_zone=None),
        world.apply(provider(**elsewhere, trust_zone=None)),
    ):
        with pytest.raises(CatalogueError, match="must state trust_zone again"):
            await attempt
    await world.change("provider", "house", base_url="http://127.0.0.1:8080/v1", max_concurrency=3)
    await world.change("provider", "house", **elsewhere, trust_zone="local")

    (found,) = (await world.catalogue.snapshot()).providers.values()
    assert ("https://api.example/v1", TrustZone.LOCAL, 3) == (found.base_url, found.zone, found.max_concurrency)


@pytest.mark.parametrize("via", ["api", "http", "mystery"])
async def test_a_script_cannot_be_set_from_afar(world: World, via: str) -> None:
    """Nobody who comes over the network names a file of this machine; what is stored may be sent back as it is."""
    scripted = provider(kind="scripted", base_url=None, script="/srv/s.toml")
    with pytest.raises(CatalogueError, match="script can be set on the machine itself only"):
        await world.apply(scripted, via=via)
    await world.apply(scripted)

    for attempt in (
        world.change("provider", "house", via=via, script="/etc/passwd"),
        world.change("provider", "house", via=via, script=None),
        world.apply(provider(kind="scripted", base_url=None, script="/etc/passwd"), via=via),
    ):
        with pytest.raises(CatalogueError, match="script can be set on the machine itself only"):
            await attempt
    same = await world.apply(scripted, via=via)
    left_out = await world.apply(provider(kind="scripted", base_url=None, max_concurrency=2), via=via)

    (found,) = (await world.catalogue.snapshot()).providers.values()
    assert ((), ("provider house",)) == (same.changed, left_out.changed)
    assert ("/srv/s.toml", 2) == (found.script, found.max_concurrency)


# --- change and delete ------------------------------------------------------------------------------------------


async def test_change_changes_what_is_given_and_clears_what_is_none(world: World) -> None:
    """Everything else stays, links and texts too."""
    await world.apply(*EVERYTHING)
    before = by_identifier(await world.catalogue.snapshot())

    written = await world.change(
        "configuration", "support", max_iterations=5, system_prompt_data_class=None, skills=None
    )

    after = by_identifier(await world.catalogue.snapshot())
    assert Written(version=3, changed=("configuration support",)) == written
    differing = {
        k for k, v in after["configurations"]["support"].items() if v != before["configurations"]["support"].get(k)
    }
    assert {"max_iterations", "skills"} == differing
    assert "prompt_class" not in after["configurations"]["support"]
    assert before["snippets"] == after["snippets"]


async def test_a_change_that_changes_nothing_bumps_nothing(world: World) -> None:
    """It says so by naming nothing."""
    await world.apply(*EVERYTHING)

    assert Written(version=2) == await world.change(
        "configuration", "support", max_iterations=200, snippets=["tone", "incident-report"]
    )
    assert Written(version=2) == await world.change("policy", "", data_class_enforcement="Observe")
    assert Written(version=2) == await world.change("tool", "post_json", enabled=False)
    assert Written(version=2) == await world.apply()


@pytest.mark.parametrize("kind", ["provider", "configuration", "snippet", "skill", "egress"])
async def test_what_does_not_exist_cannot_be_changed(world: World, kind: str) -> None:
    """The error says that it is missing, which is not the same as wrong."""
    for attempt in (world.change(kind, "nowhere"), world.delete(kind, "nowhere")):
        with pytest.raises(CatalogueError) as refused:
            await attempt

        assert refused.value.missing
        assert f"{kind} nowhere: does not exist" == str(refused.value)


async def test_a_tool_is_switched_without_having_been_written(world: World) -> None:
    """Tools exist in code; deleting the switch gives the tool its default back."""
    created = await world.change("tool", "post_json", enabled=False)
    deleted = await world.delete("tool", "post_json")

    assert ("tool post_json",) == created.created == deleted.deleted
    assert {} == (await world.catalogue.snapshot()).tool_switches
    assert ["created tool post_json: enabled", "deleted tool post_json"] == await world.audit()


async def test_the_policy_is_not_deleted(world: World) -> None:
    """It can only be set."""
    with pytest.raises(CatalogueError, match="policy: cannot be deleted, only set"):
        await world.delete("policy", "policy")


@pytest.mark.parametrize(
    ("kind", "records"),
    [("provider", "providers"), ("configuration", "configurations"), ("snippet", "snippets"), ("skill", "skills")],
)
async def test_delete_is_soft_and_final(world: World, kind: str, records: str) -> None:
    """The same identifier applied again is a new uid, even when nothing came in between; the old one stays listed."""
    await world.apply(provider(), configuration(), snippet(), skill())
    spec = {"provider": provider(), "configuration": configuration(), "snippet": snippet(), "skill": skill()}[kind]

    deleted = await world.delete(kind, spec.identifier)
    assert Written(version=3, deleted=(f"{kind} {spec.identifier}",)) == deleted
    assert {} == getattr(await world.catalogue.snapshot(), records)
    again = await world.apply(spec)

    assert (f"{kind} {spec.identifier}",) == again.created
    assert [2] == list(getattr(await world.catalogue.snapshot(), records))
    listed = [(r.uid, r.active, r.deleted) for r in await world.catalogue.listed() if r.kind == kind]
    assert [(1, False, True), (2, True, False)] == listed


async def test_deleting_what_is_used_leaves_the_user_alone(world: World) -> None:
    """A link to a deleted record is dropped, a provider that is gone is none, a fallback dangles."""
    await world.apply(*EVERYTHING)

    await world.delete("provider", "house")
    await world.delete("snippet", "tone")
    await world.delete("skill", "refunds")
    await world.delete("configuration", "support-eu")

    (support,) = (await world.catalogue.snapshot()).configurations.values()
    assert (None, (2,), (), ("support-eu",)) == (support.provider, support.snippets, support.skills, support.fallbacks)
    assert Written(version=7, changed=("configuration support",)) == await world.change(
        "configuration", "support", max_iterations=9
    )


async def test_an_applied_snippet_of_an_old_name_is_not_linked_by_itself(world: World) -> None:
    """A link holds the uid; a new record of the name is another one until the configuration names it."""
    await world.apply(provider(), snippet(), configuration(snippets=["tone"]))
    await world.delete("snippet", "tone")

    await world.apply(snippet())
    assert () == next(iter((await world.catalogue.snapshot()).configurations.values())).snippets
    written = await world.apply(snippet(), configuration(snippets=["tone"]))

    assert ("configuration support",) == written.changed
    assert (2,) == next(iter((await world.catalogue.snapshot()).configurations.values())).snippets


# --- prune ------------------------------------------------------------------------------------------------------


async def test_prune_deletes_what_is_not_named(world: World) -> None:
    """Records end, switches and hosts go; the policy stays. All in one version."""
    await world.apply(*EVERYTHING)
    await world.audit()

    written = await world.apply(
        provider(api_key_env="REGATE_KEY_HOUSE", max_concurrency=64, requests_per_minute=600),
        skill(name="Refund rules", data_class="internal_configuration", allowed_tools=["lookup_order"]),
        prune=True,
    )

    snapshot = await world.catalogue.snapshot()
    assert 3 == written.version
    assert ((), ()) == (written.created, written.changed)
    assert [
        "provider stand-in",
        "configuration support",
        "configuration support-eu",
        "snippet tone",
        "snippet incident-report",
        "skill empty",
        "tool post_json",
        "egress tickets.example",
    ] == list(written.deleted)
    assert [f"deleted {name}" for name in written.deleted] == await world.audit()
    assert Enforcement.OBSERVE is snapshot.enforcement
    assert ([1], [], [], [1]) == (
        list(snapshot.providers),
        list(snapshot.configurations),
        list(snapshot.snippets),
        list(snapshot.skills),
    )
    assert ({}, ()) == (snapshot.tool_switches, snapshot.egress)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "provider house in provider"),
        ({"provider": "other", "snippets": ["tone"]}, "snippet tone in snippets"),
        ({"provider": "other", "fallbacks": ["second"]}, "configuration second in fallbacks"),
    ],
)
async def test_prune_refuses_to_take_what_the_file_itself_names(
    world: World, is_old: bool, fields: dict[str, Any], named: str
) -> None:
    """The state after the write counts, for a record that was there before as well."""
    await world.apply(provider(), snippet(), configuration("second"))
    if is_old:
        await world.apply(provider("other"), configuration(**fields))

    with pytest.raises(CatalogueError, match=f"line 5: configuration support: {named} would be deleted by this write"):
        await world.apply(provider("other"), configuration(line=5, **fields), prune=True)


# --- snapshot ---------------------------------------------------------------------------------------------------


async def test_a_known_snapshot_comes_back_while_it_is_live(world: World) -> None:
    """The very same object, so that whoever holds it sees that nothing moved."""
    await world.apply(*EVERYTHING)
    known = await world.catalogue.snapshot()

    assert known is await world.catalogue.snapshot(known)
    await world.change("policy", "policy", data_class_enforcement="enforce")
    fresh = await world.catalogue.snapshot(known)

    assert (2, 3) == (known.version, fresh.version)


@pytest.mark.parametrize("zone", ["", "mars", "Local", " local", "local\n"])
async def test_an_unknown_stored_zone_is_the_least_trusted(world: World, zone: str) -> None:
    """T37."""
    await world.apply(provider(), record("egress", "h.example", trust_zone="local"))
    await world.set(catalogue_tables.provider, trust_zone=zone)
    await world.set(catalogue_tables.egress, trust_zone=zone)

    snapshot = await world.catalogue.snapshot()
    assert snapshot.readable
    assert TrustZone.EXTERNAL_GLOBAL is snapshot.providers[1].zone
    assert TrustZone.EXTERNAL_GLOBAL is snapshot.egress[0].zone


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, None),
        ("", None),
        ("public_content", DeclaredClass.PUBLIC_CONTENT),
        ("secret_adjacent", DeclaredClass.SECRET_ADJACENT),
        ("secretAdjacent", DeclaredClass.UNREADABLE),
        (" public_content", DeclaredClass.UNREADABLE),
        ("unreadable", DeclaredClass.UNREADABLE),
        ("0", DeclaredClass.UNREADABLE),
    ],
)
async def test_a_stored_class_that_is_none_of_the_six_is_unreadable(
    world: World, stored: str | None, expected: DeclaredClass | None
) -> None:
    """It folds above everything; only nothing declares nothing."""
    await world.apply(provider(), configuration(), snippet(), skill())
    await world.set(catalogue_tables.configuration, prompt_class=stored)
    await world.set(catalogue_tables.snippet, data_class=stored)
    await world.set(catalogue_tables.skill, data_class=stored)

    snapshot = await world.catalogue.snapshot()
    assert snapshot.readable
    assert expected is snapshot.configurations[1].prompt_class
    assert expected is snapshot.snippets[1].declared
    assert expected is snapshot.skills[1].declared


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("observe", Enforcement.OBSERVE),
        ("OBSERVE ", Enforcement.OBSERVE),
        (" observe", Enforcement.OBSERVE),
        *(
            (value, Enforcement.ENFORCE)
            for value in (
                "enforce",
                "observ",
                "",
                "null",
                "false",
                "true",
                "0",
                "1",
                '["observe"]',
                '"observe"',
                "observe observe",
            )
        ),
        (None, Enforcement.ENFORCE),
    ],
)
async def test_only_observe_observes(world: World, stored: str | None, expected: Enforcement) -> None:
    """T45, the reading half; None stands for a row that is not there."""
    if stored is None:
        await world.run(sa.delete(catalogue_tables.policy))
    else:
        await world.set(catalogue_tables.policy, value=stored)

    snapshot = await world.catalogue.snapshot()
    assert snapshot.readable
    assert expected is snapshot.enforcement


async def test_a_missing_switch_can_be_set(world: World) -> None:
    """It enforces already; only observing is a change."""
    await world.run(sa.delete(catalogue_tables.policy))

    assert Written(version=1) == await world.change("policy", "policy", data_class_enforcement="enforce")
    assert Written(version=2, changed=("policy",)) == await world.change(
        "policy", "policy", data_class_enforcement="observe"
    )
    assert Enforcement.OBSERVE is (await world.catalogue.snapshot()).enforcement
    assert Written(version=3, changed=("policy",)) == await world.change(
        "policy", "policy", data_class_enforcement=None
    )


async def test_a_stored_chain_is_normalised_when_read(world: World) -> None:
    """T42: what is no text names nothing."""
    await world.apply(provider(), configuration())
    await world.set(catalogue_tables.configuration, fallbacks='[" A ", "a", 7, ""]')

    snapshot = await world.catalogue.snapshot()
    assert snapshot.readable
    assert ("a",) == snapshot.configurations[1].fallbacks


@pytest.mark.parametrize(
    ("table", "cells", "mend"),
    [
        (catalogue_tables.configuration, {"fallbacks": "a, b"}, configuration()),
        (catalogue_tables.configuration, {"fallbacks": '{"a": 1}'}, configuration()),
        (catalogue_tables.configuration, {"fallbacks": "[" * 100_000}, configuration()),
        (catalogue_tables.configuration, {"allowed_tool_groups": "[1]"}, configuration()),
        (catalogue_tables.configuration, {"allowed_tool_groups": "null"}, configuration()),
        (catalogue_tables.configuration, {"max_iterations": -1}, configuration()),
        (catalogue_tables.skill, {"allowed_tools": ""}, skill()),
        (catalogue_tables.skill, {"allowed_tools": '"lookup_order"'}, skill()),
        (catalogue_tables.provider, {"max_concurrency": -5}, provider()),
    ],
)
async def test_a_row_that_makes_no_sense_makes_the_catalogue_unreadable(
    world: World, table: sa.Table, cells: dict[str, Any], mend: RecordSpec
) -> None:
    """It is never gone, and applying the record mends it."""
    await world.apply(provider(), configuration(), snippet(), skill())
    await world.set(table, **cells)

    broken = await world.catalogue.snapshot()
    assert not broken.readable
    assert (1, 1, 1, 1) == (len(broken.providers), len(broken.configurations), len(broken.snippets), len(broken.skills))
    assert Written(version=3, changed=(f"{mend.kind} {mend.identifier}",)) == await world.apply(mend)
    assert (await world.catalogue.snapshot()).readable


async def test_a_catalogue_without_its_version_is_an_error(world: World) -> None:
    """Not an empty catalogue."""
    await world.run(sa.delete(catalogue_tables.catalogue_version))

    for attempt in (
        world.catalogue.snapshot(),
        world.catalogue.texts(1, [], []),
        world.apply(snippet()),
        world.apply(),
    ):
        with pytest.raises(StoreError, match="the catalogue has no version"):
            await attempt
    assert [] == await world.rows(sa.select(catalogue_tables.snippet))


async def test_writes_at_the_same_time_come_one_after_the_other(world: World) -> None:
    """Each bumps once, none is lost."""
    await world.apply(provider())

    writes = [world.apply(snippet(f"s{n}")) for n in range(10)]
    writes += [world.change("provider", "house", max_concurrency=n + 1) for n in range(10)]
    written = await asyncio.gather(*writes)

    assert list(range(3, 23)) == sorted(w.version for w in written)
    assert 10 == len((await world.catalogue.snapshot()).snippets)


# --- texts ------------------------------------------------------------------------------------------------------


async def test_texts_come_in_the_order_asked(world: World) -> None:
    """The prompt first, then snippets, then skills; with the version they belong to."""
    await world.apply(*EVERYTHING)

    version, texts = await world.catalogue.texts(1, [2, 1, 99], [1])

    def text(kind: SourceKind, uid: int, label: str, words: str) -> SourceText:
        return SourceText(
            kind=kind, uid=uid, label=label, text=words, text_hash=world.sealer.keyed_hash("text", words.encode())
        )

    assert 2 == version
    assert (
        text(SourceKind.SYSTEM_PROMPT, 1, "support", "You answer.\r\nAlways."),
        text(SourceKind.SNIPPET, 2, "Incident", "It broke."),
        text(SourceKind.SNIPPET, 1, "Tone", "Be kind."),
        text(SourceKind.SKILL, 1, "Refund rules", "Pay back."),
    ) == texts


async def test_texts_of_deleted_records_and_empty_prompts_are_absent(world: World) -> None:
    """An empty prompt is no text and has no hash; an empty skill is a source all the same."""
    await world.apply(*EVERYTHING)
    await world.change("configuration", "support", system_prompt="")
    await world.delete("snippet", "tone")

    _, texts = await world.catalogue.texts(1, [1, 2], [2])

    support = (await world.catalogue.snapshot()).configurations[1]
    assert (False, "") == (support.has_prompt, support.prompt_hash)
    assert [("snippet", 2, "It broke."), ("skill", 2, "")] == [(t.kind, t.uid, t.text) for t in texts]
    await world.delete("configuration", "support")
    assert () == (await world.catalogue.texts(1, [], []))[1]


@pytest.mark.parametrize(
    ("spec", "table", "column"),
    [
        (configuration(system_prompt="one"), catalogue_tables.configuration, "prompt"),
        (snippet(text="one"), catalogue_tables.snippet, "text"),
        (skill(body="one"), catalogue_tables.skill, "body"),
    ],
)
async def test_an_equal_text_keeps_its_sealed_bytes(
    world: World, spec: RecordSpec, table: sa.Table, column: str
) -> None:
    """Only another text is sealed anew, under a key of its own."""
    await world.apply(provider(), spec)
    first = await world.row(table, spec.identifier)
    name = next(n for n, v in spec.fields.items() if v == "one")

    await world.change(spec.kind, spec.identifier, **{name: "one"})
    assert first == await world.row(table, spec.identifier)
    await world.change(spec.kind, spec.identifier, **{name: "two"})

    second = await world.row(table, spec.identifier)
    assert first[column] != second[column]
    assert first["wrapped_key"] != second["wrapped_key"]


async def _swap(world: World) -> None:
    rows = await world.rows(sa.select(catalogue_tables.snippet).order_by(catalogue_tables.snippet.c.uid))
    stolen = {name: rows[1][name] for name in ("text", "text_hash", "wrapped_key", "key_id")}
    await world.run(sa.update(catalogue_tables.snippet).where(catalogue_tables.snippet.c.uid == 1).values(stolen))


async def _cut(world: World) -> None:
    await world.set(catalogue_tables.snippet, text=b"")


async def _other_hash(world: World) -> None:
    await world.set(catalogue_tables.snippet, text_hash=world.sealer.keyed_hash("text", b"other"))


async def _no_key(world: World) -> None:
    world.sealer = new_sealer("k2")
    world.catalogue = SqlCatalogue(world.database, world.sealer)


@pytest.mark.parametrize("harm", [_swap, _cut, _other_hash, _no_key])
async def test_a_text_that_cannot_be_opened_is_an_error_without_content(
    world: World, harm: Callable[[World], Awaitable[None]]
) -> None:
    """Another row's text, cut bytes, a hash of something else, a key that is not here."""
    await world.apply(snippet(text=MARKER), snippet("other", text="y"))
    await harm(world)

    for attempt in (world.catalogue.texts(1, [1], []), world.catalogue.export()):
        with pytest.raises(StoreError) as failed:
            await attempt

        assert "unreadable" == failed.value.problem == str(failed.value)
        assert failed.value.__cause__ is None is failed.value.__context__
    assert (await world.catalogue.snapshot()).readable


async def test_applying_a_text_whose_key_is_lost_seals_it_anew(world: World) -> None:
    """Else a lost key could never be mended by the one who still has the text."""
    await world.apply(snippet())
    await _no_key(world)

    written = await world.apply(snippet())

    assert ("snippet tone",) == written.changed
    assert ["Be kind."] == [t.text for t in (await world.catalogue.texts(1, [1], []))[1]]


async def test_no_text_is_anywhere_in_the_clear(world: World) -> None:
    """Not in the files of the database, not in the audit, not in lists, not in the repr of a record."""
    specs = [
        provider(),
        configuration(system_prompt=f"p {MARKER}", snippets=["tone"], skills=["refunds"]),
        snippet(text=f"s {MARKER}"),
        skill(body=f"b {MARKER}"),
    ]
    await world.apply(*specs)
    await world.change("snippet", "tone", text=f"again {MARKER}")
    await world.delete("skill", "refunds")
    details, listed = await world.audit(), await world.catalogue.listed()
    snapshot = await world.catalogue.snapshot()

    assert MARKER not in repr(specs)
    assert MARKER not in repr((details, listed, snapshot))
    assert any(MARKER in str(spec.fields) for spec in await world.catalogue.export())
    if world.file is not None:
        files = list(world.file.parent.glob("runs.db*"))
        await world.database.close()
        assert files
        assert all(MARKER.encode() not in file.read_bytes() for file in files if file.exists())


# --- lists, exports, impact -------------------------------------------------------------------------------------


async def test_a_list_shows_names_classes_zones_and_switches(world: World) -> None:
    """Of everything, as the gate reads it."""
    await world.apply(*EVERYTHING)
    await world.set(catalogue_tables.skill, data_class="nonsense")
    await world.run(
        sa.update(catalogue_tables.provider).where(catalogue_tables.provider.c.uid == 2).values(trust_zone="mars")
    )

    listed = {(r.kind, r.identifier): r for r in await world.catalogue.listed()}

    assert {"data_class_enforcement": "observe"} == listed["policy", "policy"].details
    assert "external_global" == listed["provider", "stand-in"].details["trust_zone"]
    assert ("scripted", "local") == (
        listed["provider", "stand-in"].details["provider_kind"],
        listed["provider", "house"].details["trust_zone"],
    )
    assert ("house", "editor_content") == (
        listed["configuration", "support"].details["provider"],
        listed["configuration", "support"].details["system_prompt_data_class"],
    )
    assert (2, False, False, "secret_adjacent") == (
        listed["snippet", "incident-report"].uid,
        listed["snippet", "incident-report"].active,
        listed["snippet", "incident-report"].deleted,
        listed["snippet", "incident-report"].details["data_class"],
    )
    assert "unreadable" == listed["skill", "refunds"].details["data_class"]
    assert not listed["tool", "post_json"].active
    assert {"trust_zone": "private_hosted"} == listed["egress", "tickets.example"].details


async def test_an_export_applied_again_changes_nothing(world: World) -> None:
    """With `prune` neither, and not even with names that dangle."""
    await world.apply(*EVERYTHING)
    await world.delete("provider", "house")
    await world.delete("snippet", "tone")
    await world.delete("configuration", "support-eu")
    version = (await world.catalogue.snapshot()).version

    exported = await world.catalogue.export()

    assert Written(version=version) == await world.apply(*exported)
    assert Written(version=version) == await world.apply(*exported, prune=True)


async def test_an_export_makes_an_equal_catalogue(world: World) -> None:
    """In an empty database, texts included."""
    await world.apply(*EVERYTHING)
    exported = await world.catalogue.export()
    other = Database.open("sqlite://")
    await other.create_all()
    copy = SqlCatalogue(other, world.sealer)

    await copy.apply(exported, prune=False, actor="local", via="cli")

    assert by_identifier(await world.catalogue.snapshot()) == by_identifier(await copy.snapshot())
    assert exported == await copy.export()
    await other.close()


async def test_an_export_hides_no_class_or_zone_that_cannot_be_read(world: World) -> None:
    """It is given as it stands, and applying it is refused: nobody loses a class by a round trip."""
    await world.apply(provider(), snippet(data_class="secret_adjacent"))
    await world.set(catalogue_tables.snippet, data_class="secretAdjacent")

    exported = await world.catalogue.export()

    with pytest.raises(CatalogueError, match="snippet tone: data_class must be one of"):
        await world.apply(*exported)
    await world.set(catalogue_tables.configuration, fallbacks="x")
    await world.apply(configuration())
    await world.set(catalogue_tables.configuration, allowed_tool_groups="x")
    with pytest.raises(StoreError, match="allowed_tool_groups of configuration support cannot be read"):
        await world.catalogue.export()


def run_row(uid: int, status: RunStatus, configuration_uid: int) -> dict[str, Any]:
    running, final = status is RunStatus.RUNNING, status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
    return {
        "uid": uid,
        "uuid": f"run-{uid}",
        "status": status.value,
        "head": b"",
        "token": "t" if running else None,
        "due_at": 1.0 if running else None,
        "question": "q" if status in (RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT) else None,
        "key_id": "k1",
        "doc_version": 1,
        "owner": "local",
        "origin": "cli",
        "configuration_uid": configuration_uid,
        "configuration": "c",
        "created_at": 1.0,
        "updated_at": 1.0,
        "finished_at": 1.0 if final else None,
    }


async def test_carrying_names_the_runs_that_are_not_final(world: World) -> None:
    """By carried source, by configuration, and by the provider that a living configuration uses."""
    await world.apply(*EVERYTHING)
    runs = [run_row(n, status, 1) for n, status in enumerate(RunStatus, start=1)] + [run_row(9, RunStatus.QUEUED, 2)]
    sources = [
        {
            "run_uid": uid,
            "kind": kind,
            "source_uid": source,
            "name": "n",
            "origin": "forced",
            "seen": None,
            "text_hash": "",
        }
        for uid, kind, source in [
            (4, "snippet", 1),
            (3, "snippet", 1),
            (5, "snippet", 1),
            (9, "skill", 1),
            (2, "snippet", 2),
        ]
    ]
    for row in runs:
        await world.run(sa.insert(tables.run).values(row))
    for row in sources:
        await world.run(sa.insert(tables.run_source).values(row))

    alive = ["run-1", "run-2", "run-3", "run-4"]
    assert ["run-3", "run-4"] == await world.catalogue.carrying("snippet", "tone")
    assert ["run-9"] == await world.catalogue.carrying("skill", "refunds")
    assert alive == await world.catalogue.carrying("configuration", "support")
    assert alive == await world.catalogue.carrying("provider", "house")
    assert ["run-9"] == await world.catalogue.carrying("provider", "stand-in")
    assert [] == await world.catalogue.carrying("tool", "post_json")
    with pytest.raises(CatalogueError) as refused:
        await world.catalogue.carrying("snippet", "nowhere")
    assert refused.value.missing


# --- actors -----------------------------------------------------------------------------------------------------


async def test_an_actor_has_the_rights_it_was_given(world: World) -> None:
    """Creating is one version; the snapshot holds users and service accounts by name."""
    person = {"name": "ana@example.org", "kind": "user", "groups": ["desk"], "grants": ["runs:decide", "runs:read"]}
    first = await world.catalogue.add_actor(person | {"max_class": "source_code"}, by="local", via="cli")
    await world.catalogue.add_actor({"name": "ci", "kind": "service", "scopes": ["runs:start"]}, by="local", via="cli")
    await world.catalogue.add_actor({"name": "root", "admin": True}, by="local", via="cli")

    actors = (await world.catalogue.snapshot()).actors
    assert Written(version=2, created=("actor ana@example.org",)) == first
    ana, ci, root = actors["ana@example.org"], actors["ci"], actors["root"]
    assert (ActorKind.USER, 1, True, False) == (ana.kind, ana.uid, ana.enabled, ana.admin)
    assert (("desk",), ("runs:decide", "runs:read"), ()) == (ana.groups, ana.grants, ana.scopes)
    assert DeclaredClass.SOURCE_CODE is ana.max_class
    assert (ActorKind.SERVICE, (), ("runs:start",), None) == (ci.kind, ci.grants, ci.scopes, ci.max_class)
    assert (ActorKind.USER, True, ()) == (root.kind, root.admin, root.grants)
    rows = await world.rows(sa.select(tables.audit).order_by(tables.audit.c.uid))
    assert ["actor_changed"] * 3 == [row["decision"] for row in rows]
    assert "created actor root: kind, enabled, admin, groups, grants, scopes, max_class" == rows[2]["detail"]


async def test_an_actor_is_replaced_and_keeps_its_uid(world: World) -> None:
    """What is left out is taken away; the same again changes nothing."""
    await world.catalogue.add_actor({"name": "ana", "admin": True, "grants": ["purge"]}, by="local", via="cli")
    await world.audit()

    replaced = await world.catalogue.add_actor({"name": "ana", "groups": ["desk"]}, by="root", via="api")
    same = await world.catalogue.add_actor({"name": "ana", "groups": ["desk"]}, by="root", via="api")

    ana = (await world.catalogue.snapshot()).actors["ana"]
    assert (Written(version=3, changed=("actor ana",)), Written(version=3)) == (replaced, same)
    assert (1, False, (), ("desk",)) == (ana.uid, ana.admin, ana.grants, ana.groups)
    assert ["changed actor ana: admin, groups, grants"] == await world.audit()


async def test_a_disabled_actor_is_still_there(world: World) -> None:
    """Disabled once is one version; enabling is replacing."""
    await world.catalogue.add_actor({"name": "ana", "grants": ["purge"]}, by="local", via="cli")

    disabled = await world.catalogue.disable_actor("ana", by="local", via="cli")
    again = await world.catalogue.disable_actor("ana", by="local", via="cli")

    ana = (await world.catalogue.snapshot()).actors["ana"]
    assert (Written(version=3, changed=("actor ana",)), Written(version=3)) == (disabled, again)
    assert (False, ("purge",)) == (ana.enabled, ana.grants)
    with pytest.raises(CatalogueError) as refused:
        await world.catalogue.disable_actor("nobody", by="local", via="cli")
    assert refused.value.missing


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "local"}, "is reserved"),
        ({"name": "Anonymous"}, "is reserved"),
        ({"name": ""}, "must be"),
        ({"name": "a b"}, "must be"),
        ({"name": "-a"}, "must be"),
        ({"name": None}, "must be"),
        ({"name": "ana\n"}, "must be"),
        ({"kind": "local"}, "kind must be one of user, service"),
        ({"kind": "anonymous"}, "kind must be one of user, service"),
        ({"grants": ["*"]}, "grants has an entry that must be one of"),
        ({"grants": ["runs:*"]}, "grants has an entry"),
        ({"grants": "purge"}, "grants must be a list"),
        ({"kind": "service", "scopes": ["*"]}, "scopes has an entry"),
        ({"kind": "service", "grants": ["runs:read"]}, "a service account has scopes"),
        ({"kind": "service", "admin": True}, "a service account has scopes"),
        ({"scopes": ["runs:read"]}, "scopes are for service accounts"),
        ({"admin": 1}, "admin must be true or false"),
        ({"max_class": "unreadable"}, "max_class must be one of"),
        ({"max_class": "top"}, "max_class must be one of"),
        ({"groups": [" x"]}, "groups has an entry"),
        ({"password": MARKER}, "there is no field"),
    ],
)
async def test_an_actor_that_cannot_be_is_refused(world: World, fields: dict[str, Any], problem: str) -> None:
    """Nothing is written and no value is shown."""
    with pytest.raises(CatalogueError, match=problem) as refused:
        await world.catalogue.add_actor({"name": "ana"} | fields, by="local", via="cli")

    assert MARKER not in str(refused.value)
    assert 1 == (await world.catalogue.snapshot()).version


async def test_rights_that_cannot_be_read_are_none(world: World) -> None:
    """A class that is no class lets nobody read more; a broken list makes the catalogue unreadable."""
    await world.catalogue.add_actor(
        {"name": "ana", "grants": ["purge"], "max_class": "source_code"}, by="local", via="cli"
    )
    await world.set(catalogue_tables.actor, max_class="everything")

    first = await world.catalogue.snapshot()
    await world.set(catalogue_tables.actor, grants="*")
    second = await world.catalogue.snapshot()

    assert (True, None, ("purge",)) == (first.readable, first.actors["ana"].max_class, first.actors["ana"].grants)
    assert (False, True, ()) == (second.readable, second.actors["ana"].enabled, second.actors["ana"].grants)
