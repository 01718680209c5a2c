"""Actors: who may do what. Every write of rights bumps the catalogue's version, since runs are judged by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from codec.actor import ANONYMOUS, LOCAL
from codec.text import dump_json
from codec.vocabulary import ActorKind
from worker.adapters.sql import catalogue_tables
from worker.adapters.sql import catalogue_values as values
from worker.adapters.sql.catalogue_fields import quoted
from worker.adapters.sql.catalogue_ledger import Ledger, Verb
from worker.ports.catalogue import CatalogueError, Written

__all__ = ["GRANTS", "check_actor", "check_actor_name", "disable_actor", "write_actor"]

GRANTS: Final = (
    "runs:start",
    "sources:force",
    "runs:read",
    "runs:content",
    "runs:decide",
    "runs:cancel",
    "catalogue",
    "actors",
    "keys",
    "exposure",
    "backtest",
    "bundle",
    "purge",
)
"""Words of grants and of scopes; there is no wildcard. That no service account releases a write is decided where
answers are taken, not here."""
_DECISION: Final = "actor_changed"
_RESERVED: Final = frozenset({LOCAL.name, ANONYMOUS.name})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:|+-]{0,127}")
"""Names of people and accounts, mail addresses and subjects of identity providers; they go into logs and the audit."""


def _name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise values.BadValueError("must be 1 to 128 of letters, digits and ._@:|+-, beginning with one of the former")
    if value.lower() in _RESERVED:
        raise values.BadValueError("is reserved")
    return value


_LISTS: Final = ("groups", "grants", "scopes")
_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    "name": _name,
    "kind": values.one_of((ActorKind.USER, ActorKind.SERVICE)),
    "enabled": values.flag,
    "admin": values.flag,
    "groups": values.names(values.group),
    "grants": values.names(values.one_of(GRANTS)),
    "scopes": values.names(values.one_of(GRANTS)),
    "max_class": values.data_class,
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "kind": ActorKind.USER.value,
    "enabled": True,
    "admin": False,
    "groups": (),
    "grants": (),
    "scopes": (),
    "max_class": None,
}


def check_actor_name(name: object) -> str:
    """Check a name. Errors: `CatalogueError`."""
    try:
        return _name(name)
    except values.BadValueError as error:
        raise CatalogueError(f"actor{quoted(name)}: name {error.problem}") from error


def check_actor(actor: Mapping[str, Any]) -> dict[str, Any]:
    """Check an actor and fill in defaults: a user without any right. Gives the row's columns.

    Errors: `CatalogueError`, also for a service account with grants or admin, and a user with scopes.
    """
    name = check_actor_name(actor.get("name"))
    found: dict[str, Any] = {"name": name} | dict(_DEFAULTS)
    for field, value in actor.items():
        if field not in _CHECKS:
            raise CatalogueError(f"actor {name}: there is no field{quoted(field)}")
        if value is None:
            continue
        try:
            found[field] = _CHECKS[field](value)
        except values.BadValueError as error:
            raise CatalogueError(f"actor {name}: {field} {error.problem}") from error
    if found["kind"] == ActorKind.SERVICE and (found["grants"] or found["admin"]):
        raise CatalogueError(f"actor {name}: a service account has scopes, no grants, and is no admin")
    if found["kind"] == ActorKind.USER and found["scopes"]:
        raise CatalogueError(f"actor {name}: scopes are for service accounts; a user has grants")
    return found | {field: dump_json(found[field]) for field in _LISTS}


def write_actor(conn: sa.Connection, columns: Mapping[str, Any], *, by: str, via: str) -> Written:
    """Create or replace an actor under its name; the uid stays, and with it the keys."""
    ledger = Ledger(conn, decision=_DECISION, actor=by, via=via)
    table, name = catalogue_tables.actor, columns["name"]
    row = conn.execute(sa.select(table).where(table.c.name == name)).mappings().one_or_none()
    if row is None:
        conn.execute(sa.insert(table).values(dict(columns)))
        ledger.note(Verb.CREATED, f"actor {name}", [c for c in columns if c != "name"])
        return ledger.close()
    changed = {column: cell for column, cell in columns.items() if cell != row[column]}
    if changed:
        conn.execute(sa.update(table).where(table.c.uid == row["uid"]).values(changed))
        ledger.note(Verb.CHANGED, f"actor {name}", list(changed))
    return ledger.close()


def disable_actor(conn: sa.Connection, name: str, *, by: str, via: str) -> Written:
    """Take every right from an actor until it is enabled again. Errors: `CatalogueError` when there is none."""
    ledger = Ledger(conn, decision=_DECISION, actor=by, via=via)
    table = catalogue_tables.actor
    enabled = conn.execute(sa.select(table.c.enabled).where(table.c.name == name)).scalar_one_or_none()
    if enabled is None:
        raise CatalogueError(f"actor {name}: does not exist", missing=True)
    if enabled:
        conn.execute(sa.update(table).where(table.c.name == name).values(enabled=False))
        ledger.note(Verb.CHANGED, f"actor {name}", ["enabled"])
    return ledger.close()
