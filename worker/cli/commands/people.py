"""People and service accounts from the command line: `actor add`, `actor disable`."""

from __future__ import annotations

import click

from codec.vocabulary import ActorKind, DeclaredClass
from worker.cli.options import Asked, common
from worker.cli.printing import print_json, print_line
from worker.cli.session import VIA, Session, in_session

__all__ = ["actor"]

_CLASSES = [c.value for c in DeclaredClass if c is not DeclaredClass.UNREADABLE]


@click.group()
def actor() -> None:
    """Add and disable people and service accounts. What an actor may do is judged live, also for waiting runs."""


@actor.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="Holds every grant.")
@click.option("--group", "groups", multiple=True, metavar="G", help="A group that the actor belongs to.")
@click.option("--grant", "grants", multiple=True, metavar="G", help="A right, as runs:start or runs:decide.")
@click.option("--max-class", type=click.Choice(_CLASSES), metavar="C", help="The strictest class of runs to be read.")
@click.option("--service", is_flag=True, help="A service account: it has scopes, and releases nothing.")
@click.option("--scope", "scopes", multiple=True, metavar="S", help="A right of a service account.")
@common
def add(
    asked: Asked,
    name: str,
    groups: tuple[str, ...],
    grants: tuple[str, ...],
    max_class: str | None,
    scopes: tuple[str, ...],
    *,
    admin: bool,
    service: bool,
) -> int:
    """Create an actor, or replace the rights of one; a disabled one is enabled again."""
    fields = {
        "name": name,
        "kind": (ActorKind.SERVICE if service else ActorKind.USER).value,
        "enabled": True,
        "admin": admin,
        "groups": list(groups),
        "grants": list(grants),
        "scopes": list(scopes),
        "max_class": max_class,
    }

    async def work(session: Session) -> None:
        await session.must_hold("actors", "change actors")
        written = await session.runtime.parts.catalogue.add_actor(fields, by=session.actor.name, via=VIA)
        if asked.json:
            print_json({"actor": name, "version": written.version})
        else:
            done = "created" if written.created else "changed" if written.changed else "as it was:"
            print_line(f"{done} actor {name}")

    return in_session(asked, work)


@actor.command()
@click.argument("name")
@common
def disable(asked: Asked, name: str) -> int:
    """Take every right from an actor, at once. Its waiting runs are blocked until it is added again."""

    async def work(session: Session) -> None:
        await session.must_hold("actors", "change actors")
        written = await session.runtime.parts.catalogue.disable_actor(name, by=session.actor.name, via=VIA)
        print_json({"actor": name, "version": written.version}) if asked.json else print_line(f"disabled actor {name}")

    return in_session(asked, work)
