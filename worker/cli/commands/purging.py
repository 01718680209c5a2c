"""`purge`: destroy what runs said that ended long ago."""

from __future__ import annotations

from typing import Final

import click

from codec.vocabulary import FINAL_STATUSES, RunStatus
from worker.cli.asking import confirm, has_person
from worker.cli.faults import REFUSED, USAGE, CommandError
from worker.cli.options import AGE, Asked, common
from worker.cli.printing import print_json, print_line
from worker.cli.progress import Progress
from worker.cli.session import VIA, Session, in_session
from worker.cli.texts import plural
from worker.ports.keeping import Wanted

__all__ = ["purge"]

_STATUSES: Final = [status.value for status in RunStatus if status in FINAL_STATUSES]
_COMPACTED: Final = 256 * 1024 * 1024
"""Bytes up to which a SQLite file is written anew without being asked: that takes 2 to 3 s (measured), in which nobody
else writes. Of a lease of 30 s a quarter would be felt."""


@click.command()
@click.option("--older-than", type=AGE, required=True, metavar="AGE", help="Ended so long ago: 600s, 90min, 12h, 30d.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="Only these; else all three.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The oldest N; else all.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--compact/--no-compact", default=None, help="Write a SQLite file anew; by default one up to 256 MB.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
def purge(
    asked: Asked,
    older_than: float,
    statuses: tuple[str, ...],
    limit: int | None,
    compact: bool | None,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Destroy what runs said: their keys, documents, entries and answers, for good.

    Who ran what, when, under which policy, with which decisions and exposures stays, and so does the audit.
    """
    chosen = tuple(RunStatus(status) for status in dict.fromkeys(statuses or _STATUSES))

    async def work(session: Session) -> None:
        await session.must_hold("purge", "purge runs")
        now = await session.runtime.parts.store.now()
        wanted = Wanted(statuses=chosen, before=now - older_than, limit=limit)
        if dry_run:
            found = await session.opened.purging.count(wanted)
            print_json({"would_purge": found}) if asked.json else print_line(f"would purge {plural(found, 'run')}")
            return
        if compact and await session.opened.purging.size() is None:
            raise CommandError(
                "not_a_file", "only a file of SQLite can be written anew; see VACUUM of the server", USAGE
            )
        if not yes:
            await _ask(session, wanted)
        await _purge(session, wanted, compact)

    return in_session(asked, work)


async def _ask(session: Session, wanted: Wanted) -> None:
    if not has_person():
        raise CommandError("not_confirmed", "purging is for good: say --yes", USAGE)
    found = await session.opened.purging.count(wanted)
    if not confirm(f"Destroy what {plural(found, 'run')} said, for good?"):
        raise CommandError("not_confirmed", "nothing was purged", REFUSED)


async def _purge(session: Session, wanted: Wanted, compact: bool | None) -> None:
    asked, purging = session.asked, session.opened.purging
    progress = Progress("purged", silent=asked.json)
    done = await purging.purge(wanted, actor=session.actor.name, via=VIA, progress=progress)
    print_json({"purged": done}) if asked.json else print_line(f"purged {plural(done, 'run')}")
    size = await purging.size()
    small = done > 0 and size is not None and size <= _COMPACTED
    await purging.wipe(compact=small if compact is None else compact)
    if not asked.json and compact is None and done and size is not None and not small:
        told = "the file is large and was not written anew: copies of some destroyed keys may be left in it"
        click.echo(f"{told} until it is; say --compact for that", err=True)
