"""The catalogue for people: what is there, and what a write did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from worker.cli.printing import listing, section, text
from worker.cli.texts import plural
from worker.ports.catalogue import ListedRecord, Written

__all__ = ["catalogue_page", "written_page"]


def written_page(written: Written) -> RenderableType:
    """Say what a write did, a line for each record."""
    lines = [
        text(f"{verb:<9}{name}", style)
        for verb, names, style in (
            ("created", written.created, "green"),
            ("changed", written.changed, "yellow"),
            ("deleted", written.deleted, "red"),
        )
        for name in names
    ]
    told = "version" if lines else "nothing changed; version"
    return Group(*lines, text(f"{told} {written.version}", "dim"))


def catalogue_page(records: Sequence[ListedRecord]) -> RenderableType:
    """Lay out the living records by kind."""
    living = [record for record in records if not record.deleted]
    parts = [_kind(kind, list(found)) for kind, found in groupby(living, lambda record: record.kind)]
    gone = len(records) - len(living)
    if gone:
        parts.append(Group(Text(""), text(f"{plural(gone, 'deleted record')} not shown (--json lists them)", "dim")))
    return Group(*parts)


def _kind(kind: str, records: Sequence[ListedRecord]) -> RenderableType:
    columns = {"identifier": "fixed", "uid": "right", "": ""}
    return section(kind, listing(columns, (_row(record) for record in records)))


def _row(record: ListedRecord) -> Iterator[RenderableType]:
    yield text(record.identifier)
    yield text("" if record.uid is None else record.uid)
    shown = [f"{name} {value}" for name, value in record.details.items() if value not in (None, "", 0, False)]
    yield text("  ".join(shown if record.active else ["switched off", *shown]), "" if record.active else "dim")
