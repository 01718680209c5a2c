"""Steering runs: `resume`, `cancel`, `requeue`."""

from __future__ import annotations

import click

from worker.cli.options import RUN, Asked, common
from worker.cli.printing import print_json, print_line
from worker.cli.session import VIA, Session, exit_of, in_session
from worker.cli.showing import show_run

__all__ = ["cancel", "requeue", "resume"]


@click.command()
@click.argument("uuid", type=RUN)
@click.option("--wait", is_flag=True, help="Follow the run to its next rest; exit 1 if it fails or is blocked again.")
@common
def resume(asked: Asked, uuid: str, *, wait: bool) -> int:
    """Try a blocked run again. The answer that it holds still counts; nobody is asked twice."""

    async def work(session: Session) -> int:
        await session.runtime.resume(session.actor, uuid, via=VIA)
        await session.help_along(uuid, wait=wait)
        shown = await show_run(session, uuid)
        return exit_of(shown) if wait else 0

    return in_session(asked, work)


@click.command()
@click.argument("uuid", type=RUN)
@common
def cancel(asked: Asked, uuid: str) -> int:
    """End a run. A call that is under way finishes and is recorded; nothing is started any more."""

    async def work(session: Session) -> None:
        await session.runtime.cancel(session.actor, uuid, via=VIA)
        await show_run(session, uuid)

    return in_session(asked, work)


@click.command()
@click.argument("uuid", type=RUN)
@click.option("--wait", is_flag=True, help="Follow the new run to its rest and show it.")
@common
def requeue(asked: Asked, uuid: str, *, wait: bool) -> int:
    """Continue a failed run as a new one, from its last entry, and print the new run's uuid."""

    async def work(session: Session) -> int:
        handle = await session.runtime.requeue(session.actor, uuid, via=VIA)
        if wait:
            await session.help_along(handle.uuid, wait=True)
            return exit_of(await show_run(session, handle.uuid))
        print_json({"uuid": handle.uuid}) if asked.json else print_line(handle.uuid)
        return 0

    return in_session(asked, work)
