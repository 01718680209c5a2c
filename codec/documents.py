"""Versioned JSON documents: one strict reader for everything that is stored.

Rules: every document carries an integer `version`. A newer one raises `SchemaTooNewError` and is left in place. An
older one is upgraded step by step by functions that never raise anything but `CodecError`. A current one must be
complete and exactly of its type: what is missing, unknown or malformed is corruption, never a default, because a
default could widen what the run may do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from codec.errors import CodecError, SchemaTooNewError
from codec.text import MAX_DEPTH, is_plain, parse_json

__all__ = ["Upgrade", "convert", "decode_document", "encode_document", "encode_fields", "read_versioned"]

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_T = TypeVar("_T")
_AT: Final = " - at `"
_UNKNOWN_FIELD: Final = "Object contains unknown field `"
_PATH: Final = re.compile(r"\$(?:\.[a-z0-9_]+|\[(?:[0-9]+|\.\.\.)\])*")
_KNOWN_PROBLEMS: Final = (
    ("Object missing required field", "a field is missing"),
    (_UNKNOWN_FIELD, "an unknown field"),
    ("Invalid enum value", "not a known value"),
    ("Invalid value", "not a known kind"),
    ("Expected `int` >", "out of range"),
    ("Expected `int` <", "out of range"),
)
_STORED_DEPTH: Final = MAX_DEPTH + 32
"""Levels of a stored document: a cleaned value of `MAX_DEPTH` levels inside our own structs."""
_STORED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a stored document: many texts of `MAX_TEXT_BYTES`; reading one takes about ten times as much memory."""


def encode_document(value: msgspec.Struct) -> bytes:
    """Encode a struct that holds its own `version`.

    Law: the same value gives the same bytes. Errors: `CodecError` for what could not be read back, before it is stored.
    """
    return encode_fields(value, type(value).__name__.lower())


def encode_fields(value: object, document: str) -> bytes:
    """Encode a struct or the fields of a document. Errors: `CodecError` for what no reader would take."""
    problem = "cannot be stored"
    try:
        data = msgspec.json.encode(value)
        if len(data) <= _STORED_BYTES:
            return data
        problem = f"longer than {_STORED_BYTES} bytes"
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass  # the error is made below, because this one would keep the value
    raise CodecError(document, "$", problem)


def read_versioned(data: bytes, document: str, current: int) -> tuple[int, dict[str, Any]]:
    """Parse a document and give its version and its fields.

    Errors: `CodecError` for anything that is no object with a usable version, `SchemaTooNewError` for a newer one.
    A missing version means 0: the first documents had none.
    """
    fields = parse_json(data, document, max_depth=_STORED_DEPTH, max_bytes=_STORED_BYTES)
    if not isinstance(fields, dict):
        raise CodecError(document, "$", "not an object")
    version = fields.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise CodecError(document, "$.version", "not a version")
    if version > current:
        raise SchemaTooNewError(document, version, current)
    return version, fields


def decode_document(
    data: bytes,
    kind: type[_T],
    document: str,
    current: int,
    upgrades: Mapping[int, Upgrade],
    complete: Callable[[dict[str, Any]], None] | None = None,
) -> _T:
    """Decode a stored document of any released version.

    Shape: `upgrades[n]` turns the fields of version n into those of version n + 1; `complete` refuses current fields
    that lack what their struct has a default for.
    Errors: `CodecError` with the path of the fault.
    """
    written = _as_written(data, kind, current)
    if written is not None:
        return written
    version, fields = read_versioned(data, document, current)
    for older in range(version, current):
        upgrade = upgrades.get(older)
        if upgrade is None:
            raise CodecError(document, "$.version", f"version {older} was never released")
        fields = upgrade(fields)
    fields["version"] = current
    if complete is not None:
        complete(fields)
    return convert(fields, kind, document)


def _as_written(data: bytes, kind: type[_T], current: int) -> _T | None:
    """Give the value of a current document that is byte for byte what we would write; None for any other.

    Such a document breaks no rule of the strict reader: what that refuses or mends is written in another way. It is
    read about eight times as fast, and nearly every stored document is one.
    """
    if not is_plain(data):
        return None
    try:
        value = msgspec.json.decode(data, type=kind)
        same = msgspec.json.encode(value) == data
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None  # the strict reader says what is wrong, and where
    return value if same and getattr(value, "version", None) == current else None


def convert(value: object, kind: type[_T], document: str) -> _T:
    """Turn parsed JSON into a struct, strictly; the error keeps the path and drops the value."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        path, problem = _located(str(error), value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        path, problem = "$", "not of its type"
    raise CodecError(document, path, problem)


def _located(message: str, value: object) -> tuple[str, str]:
    head, _, tail = message.rpartition(_AT)
    path = tail.removesuffix("`") if head and _PATH.fullmatch(tail.removesuffix("`")) else "$"
    # A field of the document itself is named without a place; its name may look like one and must not be repeated.
    name = message.removeprefix(_UNKNOWN_FIELD).removesuffix("`")
    if isinstance(value, dict) and name != message and name in value:
        path = "$"
    for start, problem in _KNOWN_PROBLEMS:
        if message.startswith(start):
            return path, problem
    return path, "not of its type"
