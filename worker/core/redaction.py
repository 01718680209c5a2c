"""Mandatory redaction of secret shapes from everything that is sent to a model.

The transcript keeps what was said; what leaves is redacted, hashed and compared by replay. Shapes, not meanings: a
secret in plain words is not found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["MASK", "redact"]

MASK: Final = "***"

_CACHED: Final = 8192
"""Characters. Longer texts are redacted anew: the cache must not keep megabytes of content in memory."""


def _token(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else MASK


# Order matters for idempotence: what is longer in kind comes first, and the password of a URL last, because every other
# mask may stand inside it. Each pattern is linear: it consumes what it has looked at, or is bounded.
#
# The words before each pattern are looked for first: without any of them nothing matches, and looking is fifty times
# faster.
_SHAPES: Final[tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = tuple(
    (words, re.compile(pattern), replacement)
    for words, pattern, replacement in (
        (("Bearer",), r"\b(Bearer\s++)[A-Za-z0-9._~+/=-]{8,}", rf"\g<1>{MASK}"),
        # Credentials in a query string; the name stays.
        (
            ("?", "&"),
            r"(?i)([?&](?:api[_-]?key|key|token|access[_-]?token|secret|password|passwd|signature|sig|auth)=)[^&\s\"'#]+",
            rf"\g<1>{MASK}",
        ),
        # OpenAI-style keys, project keys with - and _ included.
        (("sk-",), r"\bsk-[A-Za-z0-9_-]{16,}", MASK),
        # A JWT: its first part is consumed also when no second one follows.
        (("eyJ",), r"\beyJ[A-Za-z0-9_-]{8,}+(\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+)?", _token),
        (("ghp_", "gho_", "ghu_", "ghr_", "ghs_"), r"\bgh[pousr]_[A-Za-z0-9]{20,}", MASK),
        (("github_pat_",), r"\bgithub_pat_[A-Za-z0-9_]{20,}", MASK),
        (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASK),
        (("AIza",), r"\bAIza[A-Za-z0-9_-]{30,}", MASK),
        (("xox",), r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", MASK),
        # The password of a URL's userinfo; scheme, user and host stay.
        (("://",), r"\b([a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s:/@\"']*+:)[^\s/@\"']++(?=@)", rf"\g<1>{MASK}"),
    )
)


def redact(text: str) -> str:
    """Replace every known secret shape by a mask.

    Laws: idempotent; a text without such a shape is unchanged; time is linear in the text. Short texts are cached
    because a transcript is sent again every round.
    """
    return _short(text) if len(text) <= _CACHED else _redacted(text)


@lru_cache(maxsize=2048)
def _short(text: str) -> str:
    return _redacted(text)


def _redacted(text: str) -> str:
    for words, pattern, replacement in _SHAPES:
        if any(word in text for word in words):
            text = pattern.sub(replacement, text)
    return text
