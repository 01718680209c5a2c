"""What a tool gives back becomes bounded, clean text: the result for the model, a preview's lines for a person."""

from __future__ import annotations

import re
from typing import Any, Final

from codec.errors import CodecError
from codec.text import clean_text, dump_json
from worker.ports.toolbox import ToolResult

__all__ = ["MAX_RESULT_BYTES", "bounded_text", "preview_lines", "result_text"]

MAX_RESULT_BYTES: Final = 50_000
"""Bytes of UTF-8 of one result, the marker included: some 12 000 tokens, which a few calls of one turn survive."""

_MARKER: Final = f"\n[cut: the result is longer than {MAX_RESULT_BYTES} bytes]"
_MAX_LINES: Final = 20
_MAX_LINE_CHARS: Final = 500
_SCANNED_CHARS: Final = 10_000  # of one line; the rest could only be cut off
#: Control characters act on a terminal and direction marks reorder what follows: a person is to see what will happen.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def result_text(value: object) -> str:
    """Turn a tool's return value into its text: None is empty, a dict is JSON.

    Errors: `CodecError` for any other type, and for a dict that is no JSON.
    """
    if isinstance(value, ToolResult):
        return bounded_text(value.content)
    if value is None:
        return ""
    if isinstance(value, dict):
        return bounded_text(dump_json(value))
    return bounded_text(value)


def bounded_text(value: object) -> str:
    """Clean a text and cut it between two characters, so that it and the marker have at most `MAX_RESULT_BYTES`.

    Laws: exactly `MAX_RESULT_BYTES` stay whole; the result is valid UTF-8. Errors: `CodecError` for what is no text.
    """
    if not isinstance(value, str):
        raise CodecError("result", "$", "not text")
    # Cut first, so that a huge text costs nothing: a character has a byte at least, so what goes here is never shown.
    text = clean_text(value[: MAX_RESULT_BYTES + 1], "result")
    raw = text.encode()
    if len(raw) <= MAX_RESULT_BYTES:
        return text
    return raw[: MAX_RESULT_BYTES - len(_MARKER.encode())].decode(errors="ignore") + _MARKER


def preview_lines(value: Any) -> tuple[str, ...]:
    """Turn a preview's return value into lines; a text is split, whatever is not text is left out.

    Shape: white space collapsed and trimmed, empty lines left out, at most 20 lines of 500 characters and then one
    that says how many more there are. Empty when there is nothing to show.
    """
    given = value.splitlines() if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        return ()
    lines = [line for line in map(_line, given) if line]
    if len(lines) <= _MAX_LINES:
        return tuple(lines)
    return (*lines[:_MAX_LINES], f"{len(lines) - _MAX_LINES} more")


def _line(value: object) -> str:
    if not isinstance(value, str):
        return ""
    text = " ".join(_UNSEEN.sub(" ", clean_text(value[:_SCANNED_CHARS])).split())
    return text if len(text) <= _MAX_LINE_CHARS else text[: _MAX_LINE_CHARS - 1] + "…"
