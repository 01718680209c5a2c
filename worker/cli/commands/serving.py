"""Processes that stay: `up`, `worker`, `sweep`; and `migrate`, which a release runs before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import click

from worker.bootstrap import StartError, migrate_database
from worker.cli.faults import REFUSED, USAGE, CommandError
from worker.cli.options import Asked, common
from worker.cli.printing import print_json, print_line
from worker.cli.session import Session, in_session
from worker.cli.texts import plural
from worker.queue.serve import serve_sweeper, serve_worker
from worker.runtime.sweeper import sweep_once
from worker.settings import LogFormat, Settings
from worker.telemetry import configure

__all__ = ["migrate", "sweep", "up", "worker"]


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="Where the web part listens.")
@click.option("--no-web", is_flag=True, help="Only worker and sweeper.")
@common
def up(asked: Asked, port: int | None, *, no_web: bool) -> int:
    """Start everything that this installation needs, in one process, until it is asked to end.

    The first line on stdout says that it is ready.
    """
    if not no_web:
        raise CommandError("no_web", "the web part is not in this version; start the rest with: up --no-web", USAGE)
    if port is not None:
        asked = asked.with_flag("REGATE_HTTP", f"127.0.0.1:{port}")

    def ready() -> None:
        print_json({"url": None}) if asked.json else print_line("regate ready")

    settings = _settings(asked)
    return _serve(serve_worker(settings, kind="up", log=_log(settings), ready=ready))


@click.command()
@common
def worker(asked: Asked) -> int:
    """Drive runs until SIGTERM or Ctrl-C, then let each reach its next boundary. A second signal ends it at once."""
    settings = _settings(asked)
    return _serve(serve_worker(settings, kind="worker", log=_log(settings), ready=_nothing))


@click.command()
@click.option("--every", type=click.FloatRange(0.1), metavar="S", help="Sweep every S seconds until asked to end.")
@common
def sweep(asked: Asked, every: float | None) -> int:
    """Wake runs that are due and that nobody woke: once, or for ever with --every. Every worker does so too."""
    if every is not None:
        settings = _settings(asked.with_flag("REGATE_SWEEP_SECONDS", f"{every:.3f}"))
        return _serve(serve_sweeper(settings, log=_log(settings), ready=_nothing))

    async def work(session: Session) -> None:
        woken = await sweep_once(session.runtime.parts, None)
        print_json({"woken": woken}) if asked.json else print_line(f"{plural(woken, 'run')} due")

    _settings(asked)
    return in_session(asked, work)


@click.command()
@common
def migrate(asked: Asked) -> int:
    """Bring the database to this build's schema. Safe when several do it at once, and when there is nothing to do."""
    settings = _settings(asked)
    try:
        applied = migrate_database(settings)
    except StartError as error:
        raise CommandError("migration", str(error), REFUSED) from None
    if asked.json:
        print_json({"applied": applied})
    else:
        print_line(f"applied {', '.join(applied)}" if applied else "the schema is up to date")
    return 0


def _settings(asked: Asked) -> Settings:
    if asked.acts_as not in (None, "local"):
        raise click.UsageError("this command acts for nobody; --as has no meaning here.")
    return asked.settings()


def _serve(serving: Coroutine[Any, Any, None]) -> int:
    try:
        asyncio.run(serving)
    except StartError as error:
        raise CommandError("start", str(error), REFUSED) from None
    return 0


def _log(settings: Settings) -> Callable[[str, dict[str, Any]], None]:
    return configure(as_json=settings.log is LogFormat.JSON)


def _nothing() -> None:
    """Say nothing: the log says that it is ready."""
