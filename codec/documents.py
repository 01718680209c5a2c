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
from codec.text import MAX_DEPTH, parse_json

__all__ = ["Upgrade", "convert", "decode_document", "encode_document", "read_versioned"]

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_T = TypeVar("_T")
_PATH: Final = re.compile(r" - at `(.*)`$", re.DOTALL)
_KNOWN_PROBLEMS: Final = (
    ("Object missing required field", "a field is missing"),
    ("Object contains unknown field", "an unknown field"),
    ("Invalid enum value", "not a known value"),
    ("Invalid value", "not a known kind"),
    ("Expected `int` >", "out of range"),
    ("Expected `int` <", "out of range"),
)
_STORED_DEPTH: Final = MAX_DEPTH + 32
"""Levels of a stored document: a cleaned value of `MAX_DEPTH` levels inside our own structs."""


def encode_document(value: msgspec.Struct) -> bytes:
    """Encode a struct that holds its own `version`. Law: the same value gives the same bytes."""
    return msgspec.json.encode(value)


def read_versioned(data: bytes, document: str, current: int) -> tuple[int, dict[str, Any]]:
    """Parse a document and give its version and its fields.

    Errors: `CodecError` for anything that is no object with a usable version, `SchemaTooNewError` for a newer one.
    A missing version means 0: the first documents had none.
    """
    fields = parse_json(data, document, max_depth=_STORED_DEPTH)
    if not isinstance(fields, dict):
        raise CodecError(document, "$", "not an object")
    version = fields.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise CodecError(document, "$.version", "not a version")
    if version > current:
        raise SchemaTooNewError(document, version, current)
    return version, fields


def decode_document(data: bytes, kind: type[_T], document: str, current: int, upgrades: Mapping[int, Upgrade]) -> _T:
    """Decode a stored document of any released version.

    Shape: `upgrades[n]` turns the fields of version n into those of version n + 1.
    Errors: `CodecError` with the path of the fault.
    """
    version, fields = read_versioned(data, document, current)
    for older in range(version, current):
        upgrade = upgrades.get(older)
        if upgrade is None:
            raise CodecError(document, "$.version", f"version {older} was never released")
        fields = upgrade(fields)
    fields["version"] = current
    return convert(fields, kind, document)


def convert(value: object, kind: type[_T], document: str) -> _T:
    """Turn parsed JSON into a struct, strictly; the error keeps the path and drops the value."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        path, problem = _located(str(error))
    except (ValueError, TypeError, RecursionError, OverflowError):
        path, problem = "$", "not of its type"
    raise CodecError(document, path, problem)


def _located(message: str) -> tuple[str, str]:
    found = _PATH.search(message)
    path = found[1] if found is not None else "$"
    for start, problem in _KNOWN_PROBLEMS:
        if message.startswith(start):
            return path, problem
    return path, "not of its type"
