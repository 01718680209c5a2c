"""The catalogue from the command line: apply a file, export, list, set fields, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from worker.bootstrap import parse_assignment, read_catalogue, resolve_files, write_catalogue
from worker.cli.asking import confirm, has_person
from worker.cli.faults import REFUSED, USAGE, CommandError
from worker.cli.options import Asked, common
from worker.cli.pages.catalogue import catalogue_page, written_page
from worker.cli.printing import print_json, print_line, print_people
from worker.cli.session import VIA, Session, in_session
from worker.cli.texts import harmless, plural
from worker.ports.catalogue import RecordSpec, Written

__all__ = ["catalog"]

_POLICY: Final = "policy"
_RIGHT: Final = "catalogue"


@click.group()
def catalog() -> None:
    """Read and change providers, configurations, snippets, skills, switches of tools, hosts and the policy."""


@catalog.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--prune", is_flag=True, help="Also delete every record that the file does not name.")
@common
def apply(asked: Asked, file: Path, *, prune: bool) -> int:
    """Make the catalogue hold the records of a TOML file: all of them or none, as one version."""
    specs = read_catalogue(file)

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "change the catalogue")
        catalogue = session.runtime.parts.catalogue
        _tell(asked, await catalogue.apply(specs, prune=prune, actor=session.actor.name, via=VIA))

    return in_session(asked, work)


@catalog.command()
@common
def export(asked: Asked) -> int:
    """Print all living records with their texts, as a file that `apply` takes."""

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "read the catalogue's texts")
        specs = await session.runtime.parts.catalogue.export()
        if not asked.json:
            # As it is, harmless or not: what is printed must be what `apply` reads back. TOML escapes controls.
            click.echo(write_catalogue(specs), nl=False)
        for spec in specs if asked.json else ():
            print_json({"kind": spec.kind, "identifier": spec.identifier, "fields": dict(spec.fields)})

    return in_session(asked, work)


@catalog.command("list")
@common
def list_records(asked: Asked) -> int:
    """List records with classes, zones and switches; with --json, deleted ones too."""

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "read the catalogue")
        found = await session.runtime.parts.catalogue.listed()
        if not asked.json:
            print_people(catalogue_page(found))
        for record in found if asked.json else ():
            head = {
                "kind": record.kind,
                "identifier": record.identifier,
                "uid": record.uid,
                "active": record.active,
                "deleted": record.deleted,
            }
            print_json({**head, **record.details})

    return in_session(asked, work)


@catalog.command("set")
@click.argument("kind")
@click.argument("words", nargs=-1, required=True, metavar="IDENTIFIER FIELD=VALUE...")
@common
def set_fields(asked: Asked, kind: str, words: tuple[str, ...]) -> int:
    """Change fields of one record. A value is TOML if it parses, else text; `field=` clears.

    The policy has no identifier: regate catalog set policy data_class_enforcement=observe
    """
    identifier, assignments = _named(kind, words)
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, value = parse_assignment(assignment)
        if name in fields:
            raise click.UsageError(f"{name} is set twice.")
        fields[name] = value
    spec = RecordSpec(kind=kind, identifier=identifier, fields=resolve_files(kind, fields, Path.cwd()))

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "change the catalogue")
        _tell(asked, await session.runtime.parts.catalogue.change(spec, actor=session.actor.name, via=VIA))

    return in_session(asked, work)


def _named(kind: str, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if kind == _POLICY and "=" in words[0]:
        return _POLICY, words
    if len(words) < 2:
        raise click.UsageError("write KIND IDENTIFIER FIELD=VALUE.")
    return words[0], words[1:]


@catalog.command()
@click.argument("kind")
@click.argument("identifier")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
def delete(asked: Asked, kind: str, identifier: str, *, yes: bool) -> int:
    """Delete a record for good. Runs that carry or use it are listed first: they feel it when they go on."""

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "change the catalogue")
        catalogue = session.runtime.parts.catalogue
        runs = await catalogue.carrying(kind, identifier)
        if not yes:
            _ask(f"{kind} {identifier}", runs)
        written = await catalogue.delete(kind, identifier, actor=session.actor.name, via=VIA)
        _tell(asked, written, runs=runs)

    return in_session(asked, work)


def _ask(record: str, runs: list[str]) -> None:
    if not has_person():
        raise CommandError("not_confirmed", f"deleting {record} is for good: say --yes", USAGE)
    for run in runs:
        click.echo(f"  {run}", err=True)
    felt = f"{plural(len(runs), 'unfinished run')} (above) will feel it. " if runs else ""
    if not confirm(f"{felt}Delete {record} for good?"):
        raise CommandError("not_confirmed", "nothing was deleted", REFUSED)


def _tell(asked: Asked, written: Written, **more: Any) -> None:
    if asked.json:
        print_json({**msgspec.to_builtins(written), **more})
    else:
        print_people(written_page(written))
        for run in more.get("runs", ()):
            print_line(harmless(f"  felt by run {run}"))
