"""`doctor`: all settings with their sources, and every check in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict

import click
from rich.console import RenderableType

from worker.cli.diagnosis import diagnose
from worker.cli.faults import REFUSED
from worker.cli.findings import Finding, State
from worker.cli.options import Asked, common
from worker.cli.printing import listing, print_json, print_people, section, text
from worker.cli.session import Session, in_session
from worker.settings import SettingRow, Settings

__all__ = ["doctor"]

_STYLE = {State.OK: "green", State.WARNING: "yellow", State.FAULT: "bold red"}


@click.command()
@common
def doctor(asked: Asked) -> int:
    """Check the installation: settings, database, key ring, broker, catalogue, workers, runs. Exit 1 on a fault.

    It changes nothing, and no secret is shown.
    """
    settings = asked.settings()
    if asked.acts_as is not None:
        in_session(asked, _must_be_admin)
    found = asyncio.run(_all(settings))
    if asked.json:
        checks = [{"name": f.name, "state": f.state, "message": f.message} for f in found]
        ok = all(f.state is not State.FAULT for f in found)
        print_json({"ok": ok, "settings": [asdict(row) for row in settings.rows()], "checks": checks})
    else:
        print_people(*_page(settings, found))
    return REFUSED if any(f.state is State.FAULT for f in found) else 0


async def _must_be_admin(session: Session) -> None:
    # It names every run and every setting; only who may see all of both may ask.
    await session.must_hold("runs:read", "read about all runs")
    await session.must_hold("catalogue", "read about the whole catalogue")


async def _all(settings: Settings) -> list[Finding]:
    return [finding async for finding in diagnose(settings)]


def _page(settings: Settings, found: list[Finding]) -> Iterator[RenderableType]:
    yield text("Settings", "bold")
    columns = {"setting": "fixed", "value": "", "from": "fixed"}
    yield listing(columns, (_setting(row) for row in settings.rows()))
    rows = ((text(f.state.value, _STYLE[f.state]), text(f.name), text(f.message)) for f in found)
    yield section("Checks", listing({"": "fixed", "what": "", "found": ""}, rows))


def _setting(row: SettingRow) -> Iterator[RenderableType]:
    yield text(row.name)
    yield text(row.value or "not set", "" if row.value else "dim")
    yield text(row.source, "dim" if row.source == "default" else "")
