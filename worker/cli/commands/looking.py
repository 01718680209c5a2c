"""Looking at runs: `runs`, `show`, `events`, `audit`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from codec.suspended import STATE_VERSION
from codec.vocabulary import FINAL_STATUSES, RunStatus
from worker.cli.documents import audit_document, run_document, shown_event
from worker.cli.options import RUN, SINCE, Asked, common
from worker.cli.pages.lists import audit_page, event_line, runs_page
from worker.cli.printing import print_json, print_people
from worker.cli.session import Session, in_session
from worker.cli.showing import show_run
from worker.ports.records import RunFilter

__all__ = ["audit", "events", "runs", "show"]

_STATUSES: Final = [status.value for status in RunStatus]
_FOLLOW_S: Final = 0.2
"""Seconds between two looks for new events: soon enough for a person, cheap enough for a day."""


@click.command()
@click.option("--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="Only these.")
@click.option("--since", type=SINCE, metavar="T", help="Created since a time, or 2h, 30m, 1d ago.")
@click.option("--dead", is_flag=True, help="Failed runs that can be requeued.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The newest N; else all.")
@common
def runs(asked: Asked, statuses: tuple[str, ...], since: float | None, *, dead: bool, limit: int | None) -> int:
    """List runs, newest first: all that you may see."""
    wanted = RunFilter(statuses=tuple(RunStatus(s) for s in statuses), since=since, limit=limit, dead=dead)

    async def work(session: Session) -> None:
        found = await session.runtime.runs(session.actor, wanted)
        known = session.runtime.parts.sealer.key_ids
        documents = [run_document(row, known, STATE_VERSION) for row in found]
        if asked.json:
            for document in documents:
                print_json(document)
        else:
            print_people(runs_page(documents))

    return in_session(asked, work)


@click.command()
@click.argument("uuid", type=RUN)
@common
def show(asked: Asked, uuid: str) -> int:
    """Show one run: its status, its open question, what blocks it, its answer."""

    async def work(session: Session) -> None:
        await show_run(session, uuid)

    return in_session(asked, work)


@click.command()
@click.argument("uuid", type=RUN)
@click.option("--after", type=click.IntRange(0), default=0, metavar="N", help="Only events after this sequence.")
@click.option("--follow", is_flag=True, help="Go on until the run has ended.")
@common
def events(asked: Asked, uuid: str, after: int, *, follow: bool) -> int:
    """List what happened in a run. Events hold names, classes and counts, never a text."""

    async def work(session: Session) -> None:
        seen, privacy = after, session.opened.settings.privacy
        while True:
            # The row first: what is final then has all its events in what is read after it.
            row = await session.runtime.row(session.actor, uuid)
            found = await session.runtime.events(session.actor, uuid, seen)
            for event in found:
                seen = event["sequence"]
                shown = shown_event(event, privacy)
                print_json(shown) if asked.json else print_people(event_line(shown))
            ended = row.status in FINAL_STATUSES and row.token is None
            if not follow or ended or any("final" in event for event in found):
                return
            await asyncio.sleep(_FOLLOW_S)

    return in_session(asked, work)


@click.command()
@click.option("--run", "uuid", type=RUN, metavar="UUID", help="Of one run.")
@click.option("--since", type=SINCE, metavar="T", help="Since a time, or 2h, 30m, 1d ago.")
@common
def audit(asked: Asked, uuid: str | None, since: float | None) -> int:
    """List decisions of the gate that were no permission, answers, cancels, and changes of catalogue and actors."""

    async def work(session: Session) -> None:
        found: list[dict[str, Any]] = [
            audit_document(row) for row in await session.runtime.audit(session.actor, uuid, since)
        ]
        if asked.json:
            for document in found:
                print_json(document)
        else:
            print_people(audit_page(found))

    return in_session(asked, work)
