"""The one place where text and JSON from outside become text and values of ours.

Every entrance (request, model reply, tool result, human input, catalogue) uses these functions and nothing else, so
one rule holds everywhere:

* NUL and lone surrogates become U+FFFD; no other character is touched; a text is at most `MAX_TEXT_BYTES` of UTF-8.
* JSON holds no NaN, no ±Infinity and no number that a float cannot hold, no integer of more than `MAX_INT_DIGITS`
  digits, no repeated key, at most `MAX_DEPTH` levels, at most `MAX_TEXT_BYTES` bytes. What breaks a rule is refused
  with the rule's name, before anything is stored; nothing is repaired or guessed.
* Integers within the bound survive exactly, whatever their size. `""`, `false` and `0` are values, not absences.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from codec.errors import CodecError

__all__ = [
    "MAX_DEPTH",
    "MAX_INT_DIGITS",
    "MAX_TEXT_BYTES",
    "clean_json",
    "clean_text",
    "dump_json",
    "is_plain",
    "parse_json",
    "parse_object",
]

MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of UTF-8. One journal entry fits into one batch of the writer (4 MiB); half would refuse pasted logs."""
MAX_DEPTH: Final = 64
"""Levels of nesting. Schemas and arguments of real tools stay below 20; the reference bounds artifacts at 64."""
MAX_INT_DIGITS: Final = 1000
"""Decimal digits. 2**256 has 78; Python itself refuses to print 4300 and more."""

_INT_BOUND: Final = 10**MAX_INT_DIGITS
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")
_UNSAFE: Final = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_NUL: Final = rb"\u0000"
_DIGIT: Final = re.compile(rb"[0-9]")
_HUGE: Final = re.compile(rb"[0-9]{%d}" % (MAX_INT_DIGITS + 1))
_NOT_JSON: Final = object()


def clean_text(text: str, document: str = "text", path: str = "$") -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD.

    Errors: `CodecError` when it is longer than `MAX_TEXT_BYTES`. Law: `clean_text` is idempotent.
    """
    if _UNSAFE.search(text) is not None:
        # A pair of surrogates that belongs together is one character; only what stays lone is replaced.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = joined.replace("\x00", "\ufffd")
    if len(text) > MAX_TEXT_BYTES // 4 and len(text.encode()) > MAX_TEXT_BYTES:
        raise CodecError(document, path, f"longer than {MAX_TEXT_BYTES} bytes")
    return text


def parse_json(
    data: bytes | str, document: str = "value", max_depth: int = MAX_DEPTH, max_bytes: int = MAX_TEXT_BYTES
) -> Any:
    """Read JSON from outside, strictly.

    Errors: `CodecError` naming the broken rule of the module docstring; never the input.
    Source: RFC 8259; what it leaves open (repeated keys, big numbers) is refused.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > max_bytes:
        raise CodecError(document, "$", f"longer than {max_bytes} bytes")
    plain = _as_written(raw, max_depth)
    if plain is not _NOT_JSON:
        return plain
    _check_depth(raw, document, max_depth)
    try:
        value = _loaded(raw, document)
    except CodecError:
        raise
    except (ValueError, RecursionError):
        value = _NOT_JSON
    if value is _NOT_JSON:
        # Raised out here: json's own error keeps the whole document, and a chain of contexts must not.
        raise CodecError(document, "$", "not valid JSON")
    return _cleaned(value, document, max_depth=max_depth)


def parse_object(data: bytes | str, document: str = "value") -> dict[str, Any]:
    """Read one JSON object from outside, strictly (`parse_json`), anything else is refused."""
    value = parse_json(data, document)
    if not isinstance(value, dict):
        raise CodecError(document, "$", "not an object")
    return value


def clean_json(value: object, document: str = "value") -> Any:
    """Check and normalise a value made by Python code (a tool's result, a caller's option).

    Shape: dict with text keys, list or tuple, str, int, float, bool, None. Errors: `CodecError` otherwise.
    """
    return _cleaned(value, document)


def dump_json(value: object) -> str:
    """Write a value as compact JSON, keys in their order. Errors: `CodecError` when it is not cleanable."""
    return json.dumps(_cleaned(value, "value"), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def is_plain(raw: bytes) -> bool:
    """Whether a JSON text holds nothing that only the strict reader sees: an escaped NUL, a huge integer or text."""
    if len(raw) > MAX_TEXT_BYTES or _ESCAPED_NUL in raw:
        return False
    # A huge integer covers one of the bytes that stand a thousand apart; looking at these first saves most searches.
    return _DIGIT.search(raw[::MAX_INT_DIGITS]) is None or _HUGE.search(raw) is None


def _as_written(raw: bytes, max_depth: int) -> Any:
    """Give the value of a JSON text that is byte for byte what we would write; `_NOT_JSON` for any other.

    Such a text breaks no rule of the strict reader, and is read several times as fast: it repeats no key, holds no
    number but finite ones, and so few brackets that it cannot be too deep.
    """
    if raw.count(b"{") + raw.count(b"[") > max_depth or not is_plain(raw):
        return _NOT_JSON
    try:
        value = msgspec.json.decode(raw)
        return value if msgspec.json.encode(value) == raw else _NOT_JSON
    except (ValueError, OverflowError, RecursionError):
        return _NOT_JSON


def _loaded(raw: bytes, document: str) -> Any:
    return json.loads(
        raw.decode("utf-8", "surrogatepass"),
        object_pairs_hook=_unique(document),
        parse_constant=_refuse_constant(document),
        parse_int=_bounded_int(document),
        parse_float=_finite_float(document),
    )


def _check_depth(raw: bytes, document: str, max_depth: int) -> None:
    depth = 0
    for match in _BRACKETS.finditer(_STRINGS.sub(b"", raw)):
        if match[0] in b"[{":
            depth += 1
            if depth > max_depth:
                raise CodecError(document, "$", f"nested deeper than {max_depth}")
        else:
            depth -= 1


def _unique(document: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise CodecError(document, "$", "repeated key")
        return found

    return build


def _refuse_constant(document: str) -> Callable[[str], NoReturn]:
    def refuse(_: str) -> NoReturn:
        raise CodecError(document, "$", "not a finite number")

    return refuse


def _bounded_int(document: str) -> Callable[[str], int]:
    def read(digits: str) -> int:
        if len(digits.removeprefix("-")) > MAX_INT_DIGITS:
            raise CodecError(document, "$", f"integer of more than {MAX_INT_DIGITS} digits")
        return int(digits)

    return read


def _finite_float(document: str) -> Callable[[str], float]:
    def read(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise CodecError(document, "$", "not a finite number")
        return value

    return read


def _cleaned(value: object, document: str, path: str = "$", depth: int = 0, max_depth: int = MAX_DEPTH) -> Any:
    if isinstance(value, str):
        return clean_text(value, document, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value, document, path)
    if depth >= max_depth:
        raise CodecError(document, "$", f"nested deeper than {max_depth}")
    if isinstance(value, dict):
        return _cleaned_object(value, document, path, depth, max_depth)
    if isinstance(value, list | tuple):
        return [_cleaned(item, document, f"{path}[{i}]", depth + 1, max_depth) for i, item in enumerate(value)]
    raise CodecError(document, path, "not a JSON value")


def _number(value: int | float, document: str, path: str) -> int | float:
    if isinstance(value, int):
        if not -_INT_BOUND < value < _INT_BOUND:
            raise CodecError(document, path, f"integer of more than {MAX_INT_DIGITS} digits")
    elif not math.isfinite(value):
        raise CodecError(document, path, "not a finite number")
    return value


def _cleaned_object(value: dict[Any, Any], document: str, path: str, depth: int, max_depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise CodecError(document, path, "a key is not text")
        name = clean_text(key, document, path)
        if name in found:
            raise CodecError(document, path, "repeated key")
        found[name] = _cleaned(item, document, f"{path}.*", depth + 1, max_depth)
    return found
