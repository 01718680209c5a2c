"""What is told of keys, rotations and purges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType

from worker.cli.printing import listing, text
from worker.cli.texts import moment, plural
from worker.ports.keeping import KeyRow, Rotation

__all__ = ["keys_page", "lacking", "left_under", "rotation_page"]


def keys_page(keys: Sequence[KeyRow]) -> RenderableType:
    """Lay out the list of keys, with what cannot be opened below it."""
    columns = {"key": "fixed", "": "fixed", "here": "fixed", "runs": "right", "records": "right", "known since": ""}
    warnings = (text(told, "yellow") for told in lacking(keys))
    return Group(listing(columns, (_key(key) for key in keys)), *warnings)


def _key(key: KeyRow) -> Iterator[RenderableType]:
    yield text(key.id)
    yield text("active" if key.active else "", "green")
    yield text("yes" if key.here else "no", "" if key.here or not key.rows else "yellow")
    yield text(f"{key.runs:,}")
    yield text(f"{key.records:,}")
    yield text("the database does not know it" if key.created_at is None else moment(key.created_at))


def lacking(keys: Iterable[KeyRow]) -> Iterator[str]:
    """Say what rows need a key that is not here."""
    for key in keys:
        if key.rows and not key.here:
            yield f"{_rows(key)} cannot be opened here: {key.id} is not in this key ring"


def rotation_page(rotation: Rotation) -> RenderableType:
    """Say what a rotation did."""
    began = "the active key is now" if rotation.fresh else "finished the rotation to"
    told = f"{began} {rotation.active}: re-wrapped {_counted(rotation.runs, rotation.records)}"
    return Group(text(told), *(text(line, "yellow") for line in left_under(rotation)))


def left_under(rotation: Rotation) -> Iterator[str]:
    """Say what a rotation left as it was."""
    yield from lacking(rotation.left)
    for key in rotation.left:
        if key.here:
            yield (
                f"{_rows(key)} {'is' if key.rows == 1 else 'are'} still under {key.id}: written meanwhile, or damaged; "
                "rotate again"
            )


def _rows(key: KeyRow) -> str:
    return _counted(key.runs, key.records)


def _counted(runs: int, records: int) -> str:
    told = [f"{runs:,} {'run' if runs == 1 else 'runs'}"] if runs or not records else []
    return " and ".join([*told, *([plural(records, "record")] if records else [])])
