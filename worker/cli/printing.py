"""Where answers go: stdout as JSON for programs or laid out for people. Nothing else ever prints there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from worker.cli.faults import ReaderGoneError
from worker.cli.texts import harmless

__all__ = ["Rows", "block", "console", "listing", "print_json", "print_line", "print_people", "section", "text"]

_PIPED_WIDTH: Final = 140
"""Columns when nobody's terminal says how many: a uuid, a sentence and what stands beside them."""
Rows = Iterable[tuple[str, RenderableType | None]]


def print_json(document: Any) -> None:
    """Print one document as one line of JSON, at once."""
    line = json.dumps(msgspec.to_builtins(document), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    _write(line)


def print_line(line: str) -> None:
    """Print one line, at once."""
    _write(harmless(line))


def _write(line: str) -> None:
    _put(line + "\n", sys.stdout)


def _put(told: str, stream: TextIO) -> None:
    try:
        # Bytes: the encoding of a terminal must not decide what a program reads.
        stream.buffer.write(told.encode(errors="replace"))
        stream.buffer.flush()
    except BrokenPipeError:
        # Under a name of ours: click would end the process as if the command had failed.
        raise ReaderGoneError from None


def print_people(*parts: RenderableType, stderr: bool = False) -> None:
    """Print for people, at once; colours only on a terminal."""
    opened = console(stderr=stderr)
    with opened.capture() as captured:
        for part in parts:
            # A line stays one line: a terminal breaks it where it likes, and what searches lines finds it whole.
            opened.print(part, soft_wrap=isinstance(part, Text))
    # Columns are filled up with spaces, which whoever copies or compares lines does not want.
    lines = "\n".join(line.rstrip(" ") for line in captured.get().split("\n"))
    _put(lines, sys.stderr if stderr else sys.stdout)


def console(*, stderr: bool = False) -> Console:
    """Open a console that takes every text as it is: no markup, no emoji codes, no guessed highlights."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def text(value: object, style: str = "") -> Text:
    """Make a harmless text of anything."""
    return Text(harmless(str(value)), style=style, overflow="fold")


def block(rows: Rows) -> RenderableType:
    """Lay out aligned names and values; what is None is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            grid.add_row(name, text(value) if isinstance(value, str) else value)
    return Padding(grid, (0, 0, 0, 2))


def section(title: str, *parts: RenderableType, style: str = "bold") -> RenderableType:
    """Put a title above parts, and an empty line above the title."""
    return Group(Text(""), text(title, style), *parts)


def listing(columns: Mapping[str, str], rows: Iterable[Iterable[RenderableType | None]]) -> RenderableType:
    """Lay out a table with one line under its heads. `columns` = head and `fixed`, `right` or an empty word."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head, kind in columns.items():
        table.add_column(head, no_wrap=kind == "fixed", overflow="fold", justify="right" if kind == "right" else "left")
    for row in rows:
        table.add_row(*(text(cell) if isinstance(cell, str) else cell or Text("") for cell in row))
    return table
