"""Replay: fold what was recorded through today's machine, and compare every decision and every command."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType

from codec.errors import SchemaTooNewError
from codec.vocabulary import Verdict
from worker.cli.faults import REFUSED, CommandError
from worker.cli.options import RUN, SINCE, Asked, common
from worker.cli.printing import block, print_json, print_people, text
from worker.cli.session import Session, in_session
from worker.cli.texts import plural
from worker.ports.records import RunFilter
from worker.ports.sealing import SealingError
from worker.runtime.replaying import ReplayReport

__all__ = ["replay"]


@click.command()
@click.argument("uuids", nargs=-1, type=RUN, metavar="[UUID]...")
@click.option("--since", type=SINCE, metavar="T", help="All runs created since a time, or 2h, 30m, 1d ago.")
@click.option("--until", type=click.IntRange(1), metavar="N", help="Up to this sequence.")
@common
def replay(asked: Asked, uuids: tuple[str, ...], since: float | None, until: int | None) -> int:
    """Replay runs under the policy that was recorded with them. Exit 1 when one diverged or was damaged.

    With --since, runs that were purged are left out: there is nothing to fold.
    """
    if bool(uuids) == (since is not None):
        raise click.UsageError("name runs by uuid, or say --since.")

    async def work(session: Session) -> int:
        found = [] if uuids else await session.runtime.runs(session.actor, RunFilter(since=since))
        wanted = uuids or [row.uuid for row in found if not row.purged]
        equal = True
        for uuid in wanted:
            report = await _replayed(session, uuid, until)
            print_json(_document(report)) if asked.json else print_people(_page(report))
            equal = equal and report.equal
        return 0 if equal else REFUSED

    return in_session(asked, work)


async def _replayed(session: Session, uuid: str, until: int | None) -> ReplayReport:
    try:
        return await session.runtime.replay(session.actor, uuid, until)
    except SealingError as error:
        raise CommandError("key", f"run {uuid} cannot be opened here: {error}", REFUSED, uuid=uuid) from None
    except SchemaTooNewError as error:
        raise CommandError("version", f"run {uuid} was written by a newer build: {error}", REFUSED, uuid=uuid) from None


def _document(report: ReplayReport) -> dict[str, Any]:
    found = report.divergence
    divergence = None
    if found is not None:
        divergence = {
            "sequence": found.sequence,
            "cause": found.cause,
            "recorded": found.recorded,
            "computed": found.computed,
            "written_by": report.written_by,
        }
    return {
        "uuid": report.uuid,
        "equal": report.equal,
        "entries": report.entries,
        "divergence": divergence,
        "sends": [
            {"sequence": s.sequence, "recorded": s.recorded, "now": s.now, "source": s.source} for s in report.sends
        ],
        # Under the recorded policy nothing is decided otherwise; what is, is a divergence.
        "parted_at": None,
    }


def _page(report: ReplayReport) -> RenderableType:
    found = report.divergence
    judged = plural(len(report.sends), "decision")
    refused = sum(send.recorded is Verdict.REFUSED for send in report.sends)
    told = f"{plural(report.entries, 'entry', 'entries')} folded, {judged} about sends, {refused} of them refused"
    if found is None:
        return Group(text(f"Run {report.uuid}: equal", "bold green"), block((("replayed", told),)))
    rows = (
        ("replayed", told),
        ("parts at", f"entry {found.sequence}: {found.cause}"),
        ("recorded", ", ".join(str(item) for item in found.recorded) or None),
        ("computed", ", ".join(str(item) for item in found.computed) or None),
    )
    return Group(text(f"Run {report.uuid}: diverged", "bold red"), block(rows))
