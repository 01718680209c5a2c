"""What a field of a catalogue record or an actor may hold. Checks are pure; each gives the normal form of a value.

A check refuses with `BadValueError`, whose problem reads on after the field's name and never shows the value, which
may be a text or a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import urlsplit

from codec.errors import CodecError
from codec.text import clean_text
from codec.vocabulary import DeclaredClass, Enforcement, TrustZone

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "BadValueError",
    "Check",
    "absolute_path",
    "base_url",
    "data_class",
    "enforcement",
    "fallbacks",
    "flag",
    "group",
    "host",
    "identifier",
    "key_variable",
    "line",
    "names",
    "normal_fallbacks",
    "number",
    "one_of",
    "text",
    "tool_name",
    "zone",
]

Check = Callable[[object], Any]
INT32_MAX: Final = 2**31 - 1
"""Bound of columns declared Integer, as PostgreSQL stores them."""
INT64_MAX: Final = 2**63 - 1
_LINE_CHARACTERS: Final = 200
"""Labels, names and models stand in one line of a list; the longest model names in use have about 100 characters."""
_URL_CHARACTERS: Final = 2000
_NAMES: Final = 1000
"""Entries of one list. A configuration of a thousand snippets is a mistake, not a policy."""
_IDENTIFIER: Final = re.compile(r"[a-z0-9_-]{1,64}")
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_VARIABLE: Final = re.compile(r"REGATE_KEY_[A-Za-z0-9_]{1,200}")
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_LIKE_A_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class BadValueError(ValueError):
    """A value cannot be used; `problem` says what it must be."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def text(value: object) -> str:
    """Take any text, normalised as every text from outside is."""
    if not isinstance(value, str):
        raise BadValueError("must be text (in quotes)")
    try:
        return clean_text(value)
    except CodecError as error:
        raise BadValueError(f"is {error.problem}") from error


def line(value: object) -> str:
    """Take one line of text that lists can show."""
    found = text(value)
    if len(found) > _LINE_CHARACTERS or not all(c.isprintable() for c in found):
        raise BadValueError(f"must be one line of at most {_LINE_CHARACTERS} characters")
    return found


def group(value: object) -> str:
    """Take the name of a group, of tools or of people."""
    found = line(value)
    if not found or found != found.strip():
        raise BadValueError("must be a name")
    return found


def identifier(value: object) -> str:
    """Take the identifier of a record, spelled exactly."""
    return _matching(value, _IDENTIFIER, "must be 1 to 64 of a-z, 0-9, _ and -")


def tool_name(value: object) -> str:
    """Take the name of a tool; whether one is registered is known only where tools run."""
    return _matching(value, _TOOL_NAME, "must be 1 to 64 of A-Z, a-z, 0-9, _ and -")


def key_variable(value: object) -> str:
    """Take the name of a variable that may hold a provider's key. No other variable may ever be sent to a provider."""
    return _matching(value, _KEY_VARIABLE, "must be the name of a variable that starts with REGATE_KEY_")


def absolute_path(value: object) -> str:
    """Take the path of a file of this machine."""
    found = text(value)
    if not PurePath(found).is_absolute() or "\ufffd" in found:
        raise BadValueError("must be an absolute path")
    return found


def flag(value: object) -> bool:
    """Take true or false, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise BadValueError("must be true or false")
    return value


def number(low: int, high: int) -> Check:
    """Build a check for whole numbers within bounds."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


def one_of(words: Iterable[str]) -> Check:
    """Build a check for a closed set of words, spelled exactly."""
    known = tuple(str(w.value) if isinstance(w, StrEnum) else w for w in words)

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise BadValueError(f"must be one of {', '.join(known)}")
        return value

    return check


zone: Final = one_of(TrustZone)
data_class: Final = one_of(c for c in DeclaredClass if c is not DeclaredClass.UNREADABLE)


def enforcement(value: object) -> str:
    """Take the policy's switch, trimmed and in any case; what is neither word is refused, not taken for enforce."""
    word = value.strip().lower() if isinstance(value, str) else value
    return str(one_of(Enforcement)(word))


def names(check: Check) -> Check:
    """Build a check for a list of names: in the order given, each once."""

    def check_all(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise BadValueError("must be a list")
        if len(value) > _NAMES:
            raise BadValueError(f"must have at most {_NAMES} entries")
        try:
            return tuple(dict.fromkeys(check(item) for item in value))
        except BadValueError as error:
            raise BadValueError(f"has an entry that {error.problem}") from error

    return check_all


def fallbacks(value: object) -> tuple[str, ...]:
    """Take a chain of configurations; spelling and repetition are mended as they are when a stored chain is read."""
    found = names(text)(value)
    return tuple(names(identifier)(normal_fallbacks(found)))


def normal_fallbacks(items: Iterable[object]) -> tuple[str, ...]:
    """Trim, lower-case and de-duplicate a chain; what is blank or no text is no entry. Law: idempotent."""
    entries = (item.strip().lower() for item in items if isinstance(item, str))
    return tuple(dict.fromkeys(entry for entry in entries if entry))


def base_url(value: object) -> str:
    """Take an endpoint of HTTP. Without user, query and fragment: those are where keys get stored by accident."""
    problem = "must be an http:// or https:// URL without user, query and fragment"
    found = text(value)
    try:
        parts = urlsplit(found)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise BadValueError(problem) from None  # the cause quotes the URL
    plain = len(found) <= _URL_CHARACTERS and found.isascii() and found.isprintable() and " " not in found
    if not usable or not plain or any(mark in found for mark in "@?#\\"):
        raise BadValueError(problem)
    return found


def host(value: object) -> str:
    """Take a host that tools may reach: a name or an IP literal in its shortest form, lower-cased, maybe with a port.

    Shape: IPv6 stands in brackets only before a port, so an entry without one equals a URL's host name.
    """
    problem = "must be a host name or an IP address, with or without :port"
    found = value.strip().lower() if isinstance(value, str) else ""
    match = _HOST.fullmatch(f"[{found}]" if found.count(":") > 1 and not found.startswith("[") else found)
    port = int(match[3]) if match is not None and match[3] else None
    if match is None or (port is not None and not 0 < port <= 65_535):
        raise BadValueError(problem)
    try:
        name = ipaddress.IPv6Address(match[1]).compressed if match[1] else _host_name(match[2])
    except ValueError:
        raise BadValueError(problem) from None
    if port is None:
        return name
    return f"[{name}]:{port}" if match[1] else f"{name}:{port}"


def _host_name(name: str) -> str:
    labels = name.split(".")
    if _LIKE_A_NUMBER.fullmatch(labels[-1]):
        # 127.1 and 0x7f000001 reach 127.0.0.1 with some resolvers; only the one usual spelling is an address here.
        return str(ipaddress.IPv4Address(name))
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError
    return name


def _matching(value: object, pattern: re.Pattern[str], problem: str) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BadValueError(problem)
    return value
