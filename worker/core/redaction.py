"""Mandatory redaction of secret shapes from everything that is sent to a model.

The transcript keeps what was said; what leaves is redacted, hashed and compared by replay. Shapes, not meanings: a
secret in plain words is not found.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["MASK", "redact"]

MASK: Final = "***"

_SHAPES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # OpenAI-style keys, project keys with - and _ included.
        (r"\bsk-[A-Za-z0-9_-]{16,}", MASK),
        (r"\b(Bearer\s+)[A-Za-z0-9._~+/=-]{8,}", rf"\g<1>{MASK}"),
        # Credentials in a query string; the name stays.
        (
            r"(?i)([?&](?:api[_-]?key|key|token|access[_-]?token|secret|password|passwd|signature|sig|auth)=)[^&\s\"'#]+",
            rf"\g<1>{MASK}",
        ),
        # The password of a URL's userinfo; scheme, user and host stay.
        (r"\b([a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s:/@\"']{0,256}:)[^\s/@\"']{1,256}(?=@)", rf"\g<1>{MASK}"),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", MASK),
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}", MASK),
        (r"\bgithub_pat_[A-Za-z0-9_]{20,}", MASK),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASK),
        (r"\bAIza[A-Za-z0-9_-]{30,}", MASK),
        (r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", MASK),
    )
)


@lru_cache(maxsize=2048)
def redact(text: str) -> str:
    """Replace every known secret shape by a mask.

    Laws: idempotent; a text without such a shape is unchanged. Cached because a transcript is sent again every round.
    """
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text
