"""Work W, the same for everybody: three model calls, one read-only tool, one approved write.

    model -> lookup_order(7) -> model -> refund_order(7) -> [suspended: a person approves] -> [resumed] -> model -> end

The model is scripted and answers at once. Standard library only: peers import this in an environment of their own.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any, Final

__all__ = [
    "ANSWER",
    "LOOKUP",
    "LOOKUP_ARGUMENTS",
    "PAGE_BYTES",
    "PROMPT",
    "REFUND",
    "REFUND_ARGUMENTS",
    "SYSTEM",
    "TEXTS",
    "THOUGHTS",
    "content_bytes",
    "prose",
]

_SYLLABLES: Final = tuple(re.findall("..", "bacodefiguhajokelimunaporesituvawexoyazubralecrifloalenorisut"))


@cache
def _vocabulary() -> tuple[str, ...]:
    chance = random.Random(1)  # noqa: S311 - the same words each time
    return tuple("".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(2000))


def prose(seed: int, size: int) -> str:
    """Give `size` bytes of text, another one for each seed. zstd makes it about half as long, as it does English."""
    chance = random.Random(seed)  # noqa: S311
    words: list[str] = []
    length = 0
    while length <= size:
        words.append(chance.choice(_vocabulary()))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


SYSTEM: Final = prose(11, 400)
PROMPT: Final = prose(12, 200)
THOUGHTS: Final = (prose(13, 80), prose(14, 80))
"""What the model says beside its two calls."""
LOOKUP_ARGUMENTS: Final[dict[str, Any]] = {"order": 7}
LOOKUP: Final = prose(15, 600)
"""What the read-only tool gives."""
REFUND_ARGUMENTS: Final[dict[str, Any]] = {"order": 7, "reason": prose(16, 100)}
REFUND: Final = prose(17, 80)
"""What the write gives."""
ANSWER: Final = prose(18, 300)
TEXTS: Final = (SYSTEM, PROMPT, *THOUGHTS, LOOKUP, str(REFUND_ARGUMENTS["reason"]), REFUND, ANSWER)
"""Everything that a run holds, each text once."""


PAGE_BYTES: Final = 1000
"""Bytes of one page of the long run: each round reads another one."""


def content_bytes() -> int:
    """Bytes of the texts of one run, each counted once."""
    return sum(len(text.encode()) for text in TEXTS)
