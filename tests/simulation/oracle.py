"""A second opinion about what may leave: the gate's rules written once more, from the tables and nothing else.

It shares no code with the product, so that the two can only agree by being right, or by both misreading the rules.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Carried", "Policy", "carried_by", "read_policy"]

_CLASSES: Final = (
    "public_content",
    "editor_content",
    "source_code",
    "internal_configuration",
    "system_diagnostics",
    "secret_adjacent",
)
_CEILINGS: Final = {"local": 5, "private_hosted": 4, "external_eu": 3, "external_global": 1}
_NOWHERE: Final = "external_global"


@dataclass(frozen=True, slots=True)
class Carried:
    """A text that a run carries: its class and hash as they were when it was injected."""

    kind: str
    uid: int
    seen: str | None
    text_hash: str


@dataclass(frozen=True, slots=True)
class _Source:
    identifier: str
    declared: str | None
    active: bool
    text_hash: str


@dataclass(frozen=True, slots=True)
class _Configuration:
    provider: str
    prompt_hash: str
    prompt_class: str | None
    fallbacks: tuple[str, ...]
    snippets: tuple[int, ...]
    skills: tuple[int, ...]
    second_approver: bool


@dataclass(frozen=True, slots=True)
class _Actor:
    enabled: bool
    admin: bool
    service: bool
    grants: frozenset[str]


@dataclass(slots=True)
class Policy:
    """The catalogue as it was under one version, from `since` until `until`, in virtual seconds."""

    version: int
    since: float
    enforces: bool
    zones: dict[str, tuple[int, str]]
    configurations: dict[int, _Configuration]
    named: dict[str, int]
    sources: dict[tuple[str, int], _Source]
    actors: dict[str, _Actor]
    switched_off: frozenset[str]
    until: float = float("inf")

    def refusal(self, configuration: int, carried: Iterable[Carried]) -> str | None:
        """Say why a run that carries this may not send now, or None."""
        live = self.configurations.get(configuration)
        if live is None:
            return "the configuration is gone"
        if not self.enforces:
            return None
        ranks = [_CLASSES.index(c) for c in self._classes(configuration, live, list(carried)) if c is not None]
        zone = max((self._zone(live), *map(self._zone_named, live.fallbacks)), key=list(_CEILINGS).index)
        if ranks and max(ranks) > _CEILINGS[zone]:
            return f"{_CLASSES[max(ranks)]} exceeds {zone}"
        return None

    def _classes(self, uid: int, live: _Configuration, carried: list[Carried]) -> list[str | None]:
        found = [self._class(uid, live, one) for one in carried]
        if live.prompt_hash and not any(c.uid == uid for c in carried if c.kind not in ("snippet", "skill")):
            found.append(live.prompt_class)
        snippets = [self.sources.get(("snippet", s)) for s in live.snippets]
        found += [s.declared for s in snippets if s is not None and s.active]
        found += [s.declared for s in (self.sources.get(("skill", k)) for k in live.skills) if s is not None]
        return found

    def _class(self, uid: int, live: _Configuration, one: Carried) -> str | None:
        if one.kind in ("snippet", "skill"):
            source = self.sources.get((one.kind, one.uid))
            if source is None:
                return None
            return source.declared if source.text_hash == one.text_hash else _stricter(source.declared, one.seen)
        if one.uid != uid:
            return one.seen
        if one.kind == "prompt_override":
            return live.prompt_class
        if not live.prompt_hash:
            return one.seen if live.prompt_class is None else live.prompt_class
        same = live.prompt_hash == one.text_hash
        return live.prompt_class if same else _stricter(live.prompt_class, one.seen)

    def _zone(self, configuration: _Configuration) -> str:
        return self.zones.get(configuration.provider, (0, _NOWHERE))[1]

    def _zone_named(self, identifier: str) -> str:
        uid = self.named.get(identifier)
        return _NOWHERE if uid is None else self._zone(self.configurations[uid])

    def may_release(self, decider: str, owner: str, configuration: int, *, write: bool) -> bool:
        """Whether somebody may let a call through now."""
        live = self.configurations.get(configuration)
        if live is not None and live.second_approver and decider == owner and owner != "robot":
            return False
        if decider == "local":
            return True
        actor = self.actors.get(decider)
        if actor is None or not actor.enabled or (actor.service and write):
            return False
        return actor.admin or "runs:decide" in actor.grants

    def identifier_of(self, kind: str, uid: int) -> str | None:
        """Name a living source."""
        source = self.sources.get((kind, uid))
        return None if source is None else source.identifier

    def configuration_named(self, uid: int) -> str | None:
        """Name a living configuration."""
        return next((name for name, known in self.named.items() if known == uid), None)

    @property
    def disabled(self) -> list[str]:
        """Give who may not act."""
        return [name for name, actor in self.actors.items() if not actor.enabled]

    def is_owner_enabled(self, owner: str) -> bool:
        """Whether who started a run may still act."""
        return owner == "local" or (owner in self.actors and self.actors[owner].enabled)


def _stricter(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return first or second
    return max(first, second, key=_CLASSES.index)


def carried_by(database: sqlite3.Connection, run_uid: int) -> tuple[Carried, ...]:
    """Read what a run carries."""
    rows = database.execute("SELECT kind, source_uid, seen, text_hash FROM run_source WHERE run_uid = ?", (run_uid,))
    return tuple(Carried(*row) for row in rows)


def read_policy(database: sqlite3.Connection, version: int, since: float) -> Policy:
    """Read everything that decides, as it is now."""
    mode = database.execute("SELECT value FROM policy WHERE name = 'data_class_enforcement'").fetchone()
    zones = database.execute("SELECT identifier, uid, trust_zone FROM provider WHERE deleted_at IS NULL").fetchall()
    configurations = database.execute(
        "SELECT uid, identifier, provider, prompt_hash, prompt_class, fallbacks, require_second_approver"
        " FROM configuration WHERE deleted_at IS NULL"
    ).fetchall()
    actors = database.execute("SELECT name, enabled, admin, kind, grants, scopes FROM actor").fetchall()
    return Policy(
        version=version,
        since=since,
        enforces=mode is None or mode[0] != "observe",
        zones={row[0]: (row[1], row[2]) for row in zones},
        configurations={row[0]: _configuration(database, row) for row in configurations},
        named={row[1]: row[0] for row in configurations},
        sources=_sources(database),
        actors={
            row[0]: _Actor(bool(row[1]), bool(row[2]), row[3] == "service", frozenset(json.loads(row[4])))
            for row in actors
        },
        switched_off=frozenset(row[0] for row in database.execute("SELECT name FROM tool_switch WHERE enabled = 0")),
    )


def _configuration(database: sqlite3.Connection, row: tuple[Any, ...]) -> _Configuration:
    linked = {
        kind: tuple(
            uid
            for (uid,) in database.execute(
                f"SELECT {kind}_uid FROM configuration_{kind} WHERE configuration_uid = ?", (row[0],)
            )
        )
        for kind in ("snippet", "skill")
    }
    return _Configuration(
        provider=row[2],
        prompt_hash=row[3],
        prompt_class=row[4],
        fallbacks=tuple(json.loads(row[5])),
        snippets=linked["snippet"],
        skills=linked["skill"],
        second_approver=bool(row[6]),
    )


def _sources(database: sqlite3.Connection) -> dict[tuple[str, int], _Source]:
    found: dict[tuple[str, int], _Source] = {}
    for kind, switch in (("snippet", "active"), ("skill", "enabled")):
        query = f"SELECT uid, identifier, data_class, {switch}, text_hash FROM {kind} WHERE deleted_at IS NULL"
        for uid, identifier, declared, active, text_hash in database.execute(query):
            found[kind, uid] = _Source(identifier, declared, bool(active), text_hash)
    return found
