"""The catalogue as a TOML file, read and written. Refusals name a line and a field, never a value."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomli_w

from codec.errors import CodecError
from codec.text import MAX_TEXT_BYTES, clean_text
from worker.adapters.sql.catalogue_fields import (
    KINDS,
    POLICY,
    Kind,
    check_identifier,
    check_records,
    check_value,
    kind_named,
    quoted,
)
from worker.adapters.toml_lines import Place, line_map, line_of
from worker.ports.catalogue import CatalogueError, RecordSpec

__all__ = ["parse_assignment", "read_catalogue", "resolve_files", "write_catalogue"]

_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Sixteen of the largest texts. What is larger is not a catalogue, and would be held in memory three times."""
_FILE_SUFFIX: Final = "_file"
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_QUOTED: Final = re.compile(r"(['\"])(.*?)\1", re.DOTALL)
_LineOf = Callable[[str], int | None]


def read_catalogue(path: Path) -> list[RecordSpec]:
    """Read a catalogue file, in the order of its lines.

    Shape: fields are those given, in their normal form; files that it names are found relative to it. Errors:
    `CatalogueError` with the line of the fault; references to other records are the catalogue's to check.
    """
    document = _decoded(_bytes(path, "the file", None))
    tables = _parsed(document)
    lines = line_map(document)
    folder = path.absolute().parent
    specs = [_spec(kind, table, place, lines, folder) for kind, table, place in _records(tables, lines)]
    specs.sort(key=lambda spec: spec.line or 0)
    check_records(specs)
    return specs


def write_catalogue(specs: Sequence[RecordSpec]) -> str:
    """Write records as a file that `read_catalogue` reads back as the same records.

    Shape: by kind, then in the order given; a field of None is left out.
    """
    ordered = sorted(specs, key=lambda spec: list(KINDS).index(spec.kind))
    return "\n".join(_written(spec) for spec in ordered)


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read `field=value`: the value is TOML if it parses, else text; without one the field is cleared (None).

    Errors: `CatalogueError` when there is no field.
    """
    name, equals, value = clean_text(text).partition("=")
    name = name.strip()
    if not equals or not name:
        raise CatalogueError("write field=value")
    if not value:
        return name, None
    try:
        found = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return name, value
    # Lines in the value may have made further keys of it; then it was text.
    return name, found["value"] if list(found) == ["value"] else value


def resolve_files(kind: str, fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace what names a file relative to `folder`: `script` by its absolute path, `text_file` by the text in it.

    Errors: `CatalogueError`, for an unknown kind too; values are not checked here.
    """
    return _resolved(kind_named(kind), fields, folder, lambda _: None)


def _bytes(path: Path, what: str, line: int | None) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CatalogueError(f"{what} cannot be read ({type(error).__name__})", line) from None
    if len(data) > _MAX_FILE_BYTES:
        raise CatalogueError(f"{what} is longer than {_MAX_FILE_BYTES} bytes", line)
    return data


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogueError("the file is not UTF-8", data.count(b"\n", 0, error.start) + 1) from None


def _parsed(document: str) -> dict[str, Any]:
    try:
        return tomllib.loads(document)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _PLACE.search(message)
        line = int(place[1]) if place and place[1] else document.count("\n") + 1
        hint = _PLACE.sub("", message)
        # The parser quotes what it stumbled over. One character helps and tells nothing; a key may be a text.
        shown = all(len(match[2]) <= 1 for match in _QUOTED.finditer(hint))
        raise CatalogueError(f"is not valid TOML{': ' + hint if shown else ''}", line) from None
    except RecursionError:
        raise CatalogueError("the file is nested too deep") from None


def _records(tables: Mapping[str, Any], lines: Mapping[Place, int]) -> Iterator[tuple[Kind, Mapping[str, Any], Place]]:
    """Yield each record with its kind and its place in the document."""
    for name, found in tables.items():
        line = line_of(lines, (name,))
        if name not in KINDS:
            raise CatalogueError(f"there is no kind{quoted(name)}", line)
        kind = KINDS[name]
        if name == POLICY:
            if not isinstance(found, dict):
                raise CatalogueError(f"write [{POLICY}]", line)
            yield kind, found, (name,)
            continue
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            raise CatalogueError(f"write [[{name}]]", line)
        for position, table in enumerate(found):
            yield kind, table, (name, position)


def _spec(kind: Kind, table: Mapping[str, Any], place: Place, lines: Mapping[Place, int], folder: Path) -> RecordSpec:
    line = line_of(lines, place)
    if kind.key and kind.key not in table:
        raise CatalogueError(f"{kind.name}: {kind.key} is missing", line)
    identifier = check_identifier(kind, table.get(kind.key, ""), line_of(lines, (*place, kind.key)))
    given = {name: value for name, value in table.items() if not kind.key or name != kind.key}

    def line_for(name: str) -> int:
        return line_of(lines, (*place, name))

    fields = {
        name: check_value(kind, identifier, name, value, line_for(name if name in table else name + _FILE_SUFFIX))
        for name, value in _resolved(kind, given, folder, line_for).items()
    }
    return RecordSpec(kind=kind.name, identifier=identifier, fields=fields, line=line)


def _resolved(kind: Kind, fields: Mapping[str, Any], folder: Path, line_for: _LineOf) -> dict[str, Any]:
    found = dict(fields)
    if kind.text is not None and (name := kind.text.name + _FILE_SUFFIX) in found:
        value = found.pop(name)
        if kind.text.name in found:
            raise CatalogueError(f"{kind.name}: {kind.text.name} and {name} exclude each other", line_for(name))
        found[kind.text.name] = _text_of_file(name, value, folder, line_for(name))
    for name, value in found.items():
        if name in kind.fields and kind.fields[name].local and isinstance(value, str) and value:
            found[name] = os.path.abspath(folder / value)  # noqa: PTH100 - resolves no link, drops `..`
    return found


def _text_of_file(name: str, value: object, folder: Path, line: int | None) -> str:
    if not isinstance(value, str) or not value:
        raise CatalogueError(f"{name} must be the path of a file", line)
    data = _bytes(folder / value, name, line)
    try:
        return clean_text(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise CatalogueError(f"{name} is not UTF-8", line) from None
    except CodecError:
        raise CatalogueError(f"{name} is longer than {MAX_TEXT_BYTES} bytes", line) from None


def _written(spec: RecordSpec) -> str:
    kind = KINDS[spec.kind]
    table: dict[str, Any] = {kind.key: spec.identifier} if kind.key else {}
    table |= {name: value for name, value in spec.fields.items() if value is not None}
    # Long strings are good to read, but the writer turns CR LF into LF in them.
    readable = not any(isinstance(value, str) and "\r\n" in value for value in table.values())
    header = f"[{kind.name}]" if kind.name == POLICY else f"[[{kind.name}]]"
    return f"{header}\n{tomli_w.dumps(table, multiline_strings=readable)}"
