"""Words for people: texts that cannot play with a terminal, and times that can be read at a glance."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

__all__ = ["ago", "harmless", "in_words", "moment", "plural"]

# C0 and C1 controls and DEL (all but tab and newline), line and paragraph separators, and marks that turn the direction
# of what follows: with these a text could colour, hide or forge what stands beside it.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def harmless(text: str) -> str:
    """Make control characters visible. Law: what comes out moves no cursor; plain text comes out as it is."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n")).encode(errors="replace").decode()


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's pictures of the controls
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def moment(at: float) -> str:
    """Give a time in the reader's zone, and how far away it is."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S} ({ago(at)})"


def ago(at: float, now: float | None = None) -> str:
    """Say how long ago, or in how long: `3 min ago`, `in 2 h`, `now`."""
    seconds = (time.time() if now is None else now) - at
    if abs(seconds) < 1:
        return "now"
    return f"{in_words(seconds)} ago" if seconds > 0 else f"in {in_words(-seconds)}"


def in_words(seconds: float) -> str:
    """Say a length in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Say a number of things."""
    return f"{count} {one if count == 1 else many or one + 's'}"
