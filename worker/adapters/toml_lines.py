"""Where in a TOML document each table and key stands; the standard parser does not tell.

The document has been parsed already: this module relies on its being valid and never reads a value.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Place", "line_map", "line_of"]

Place = tuple[str | int, ...]
"""Way to a value: keys, and positions in arrays."""

# Strings come first, the long ones before the short: what looks like a bracket, a comment or a key inside of one is
# none. A long string may end in up to two quotes more than the three that close it.
_TOKEN: Final = re.compile(
    r'''(?P<string>"""(?:[^"\\]++|\\[\s\S]|"(?!""))*+"""(?:"{0,2})'''
    r"""|\'\'\'(?:[^']++|'(?!''))*+\'\'\'(?:'{0,2})"""
    r"""|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
    r"""|(?P<comment>\#[^\n]*+)|(?P<newline>\n)|(?P<space>[ \t\r]++)"""
    r"""|(?P<mark>[\[\]{}=,.])|(?P<bare>[^\s\[\]{}=,."'\#]++)"""
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([btnfr\"\\]))")
_SHORT_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def line_map(document: str) -> dict[Place, int]:
    """Map every table, key and array element of a valid document to its line, counted from 1.

    Shape: a table that is declared by several headers stands at the first one. Laws: total and in linear time for
    anything that the standard parser accepts.
    """
    return _Walk(document).lines


def line_of(lines: Mapping[Place, int], place: Place) -> int:
    """Find the line of a place, else of the nearest thing around it."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    word: str
    line: int


class _Walk:
    """One pass over the tokens, as the grammar says: statements, and values within values."""

    def __init__(self, document: str) -> None:
        """Walk the whole document; `lines` is the result."""
        self.lines: dict[Place, int] = {}
        self._tokens = _tokens(document)
        self._next = 0
        self._counts: dict[Place, int] = {}  # elements so far of each array of tables
        table: Place = ()
        while (token := self._peek()) is not None:
            if token.kind == "newline":
                self._next += 1
            elif token.word == "[":
                table = self._header()
            else:
                self._pair(table)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.kind == "string" or token.word != word:
            return False
        self._next += 1
        return True

    def _header(self) -> Place:
        """Read `[a.b]` or `[[a.b]]`: what the pairs below it belong to."""
        line = self._tokens[self._next].line
        self._take("[")
        is_element = self._take("[")
        table: Place = ()
        keys = self._keys()
        for position, key in enumerate(keys, start=1):
            table += (key,)
            self._note(table, line)
            if position == len(keys) and is_element:
                self._counts[table] = self._counts.get(table, 0) + 1
            if table in self._counts:  # a header names the last element of an array by the array's name
                table += (self._counts[table] - 1,)
                self._note(table, line)
        while self._take("]"):
            pass
        return table

    def _pair(self, table: Place) -> None:
        token = self._peek()
        line = token.line if token is not None else 1
        for key in self._keys():
            table += (key,)
            self._note(table, line)
        self._take("=")
        self._value(table)

    def _keys(self) -> list[str]:
        found = []
        while (token := self._peek()) is not None:
            self._next += 1
            found.append(_plain(token.word) if token.kind == "string" else token.word)
            if not self._take("."):
                break
        return found

    def _value(self, place: Place) -> None:
        if self._take("["):
            self._array(place)
        elif self._take("{"):
            self._inline_table(place)
        else:
            self._scalar()

    def _array(self, place: Place) -> None:
        position = 0
        self._skip_newlines()
        while (token := self._peek()) is not None and not self._take("]"):
            element = (*place, position)
            self._note(element, token.line)
            self._value(element)
            position += 1
            self._skip_newlines()
            self._take(",")
            self._skip_newlines()

    def _inline_table(self, place: Place) -> None:
        self._skip_newlines()
        while self._peek() is not None and not self._take("}"):
            self._pair(place)
            self._skip_newlines()
            self._take(",")
            self._skip_newlines()

    def _scalar(self) -> None:
        """Skip a value that may be several tokens, such as 1.5 or a date and a time."""
        while (token := self._peek()) is not None:
            if token.kind == "newline" or (token.kind == "mark" and token.word in ",]}"):
                return
            self._next += 1

    def _skip_newlines(self) -> None:
        while self._take("\n"):
            pass

    def _note(self, place: Place, line: int) -> None:
        self.lines.setdefault(place, line)


def _tokens(document: str) -> list[_Token]:
    ends = [match.start() for match in re.finditer("\n", document)]
    return [
        _Token(match.lastgroup or "", match[0], bisect_right(ends, match.start() - 1) + 1)
        for match in _TOKEN.finditer(document)
        if match.lastgroup not in ("space", "comment")
    ]


def _plain(string: str) -> str:
    """Give the key that a quoted key stands for; keys are never long strings."""
    inner = string[1:-1]
    if string[0] == "'":
        return inner
    return _ESCAPE.sub(lambda m: _SHORT_ESCAPES[m[3]] if m[3] else chr(int(m[1] or m[2], 16)), inner)
