"""The tools that this installation can offer: the built-ins, and those of the modules in REGATE_TOOLS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import RenderableType

from codec.facts import ToolFacts
from worker.cli.options import Asked, common
from worker.cli.printing import listing, print_json, print_people, text
from worker.cli.session import Session, in_session

__all__ = ["tools"]

_COLUMNS: Final = {"tool": "fixed", "effect": "fixed", "class": "fixed", "group": "fixed", "": "", "what it does": ""}


@click.command()
@common
def tools(asked: Asked) -> int:
    """List tools with their effects and classes, and whether the operator has switched them off."""

    async def work(session: Session) -> None:
        switches = (await session.runtime.feed.current()).tool_switches
        documents = [_document(facts, switches) for facts in session.runtime.parts.toolbox.facts()]
        if not asked.json:
            print_people(listing(_COLUMNS, (_row(document) for document in documents)))
        for document in documents if asked.json else ():
            print_json(document)

    return in_session(asked, work)


def _document(facts: ToolFacts, switches: dict[str, bool]) -> dict[str, Any]:
    return {
        "name": facts.name,
        "description": facts.description,
        "effect": facts.effect,
        "data_class": facts.data_class,
        "group": facts.group,
        "enabled": switches.get(facts.name, facts.enabled),
        "gated": facts.gated,
        "requires_admin": facts.requires_admin,
        "input_required": facts.input_schema is not None,
        "egress": facts.egress,
    }


def _row(document: dict[str, Any]) -> Iterator[RenderableType]:
    yield text(document["name"], "" if document["enabled"] else "dim strike")
    yield text(document["effect"].value, "yellow" if document["effect"].is_write else "")
    yield text(document["data_class"].value)
    yield text(document["group"])
    yield text(", ".join(_remarks(document)))
    yield text(document["description"], "dim")


def _remarks(document: dict[str, Any]) -> Iterator[str]:
    if not document["enabled"]:
        yield "switched off"
    if document["gated"]:
        yield "asks for approval"
    if document["input_required"]:
        yield "asks a person"
    if document["requires_admin"]:
        yield "admins only"
    if document["egress"] is not None:
        yield f"reaches {'listed hosts' if document['egress'] == 'host' else document['egress']}"
