"""Fitting the transcript into the model's context window before every send. Pure estimates, no tokenizer.

Numbers: prose 3.5 and dense text 2.5 bytes a token, 8 a message and 12 a call of overhead, calibration 1.15 at first,
a safety margin of 3 %, a reserve of max_tokens or 2 % (at least 1000), 8192 for an unknown window: the figures of the
reference system, kept because runs of both shall be cut at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from codec.facts import ToolFacts
from codec.transcript import Message
from codec.vocabulary import Role

__all__ = ["FIRST_CALIBRATION", "Fit", "fit", "recalibrated"]

FIRST_CALIBRATION: Final = 1.15
_UNKNOWN_WINDOW: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The messages that fit, the estimate for them (0 = unmeasured), and whether even the floor does not fit."""

    messages: tuple[Message, ...]
    estimate: int
    overflow: bool


def fit(
    messages: Sequence[Message],
    tools: Sequence[ToolFacts],
    *,
    context_length: int,
    max_tokens: int | None,
    calibration: float,
) -> Fit:
    """Drop whole oldest turns until the rest fits; the head (through the first user message) and the newest turn stay.

    Shape: a turn starts at each assistant message. A list whose tool messages answer no earlier call, and a window
    smaller than its own reserve, pass unmeasured.
    """
    given = tuple(messages)
    budget = _budget(context_length, max_tokens)
    if budget <= 0 or not _declared(given):
        return Fit(messages=given, estimate=0, overflow=False)
    schema = _schema_bytes(tools)
    head, turns = _split(given)
    while True:
        kept = head + tuple(m for turn in turns for m in turn)
        estimate = _estimate(kept, schema, calibration)
        if estimate <= budget:
            return Fit(messages=kept, estimate=estimate, overflow=False)
        if len(turns) <= 1:
            return Fit(messages=kept, estimate=estimate, overflow=True)
        turns = turns[1:]


def recalibrated(calibration: float, estimate: int, input_tokens: int) -> float:
    """Learn from a real count; never downwards."""
    if estimate <= 0 or input_tokens <= 0:
        return calibration
    return max(calibration, input_tokens / estimate)


def _budget(context_length: int, max_tokens: int | None) -> int:
    window = context_length if context_length > 0 else _UNKNOWN_WINDOW
    reserve = max_tokens if max_tokens else max(1000, math.ceil(window * 0.02))
    return window - reserve - math.ceil(window * 0.03)


def _declared(messages: tuple[Message, ...]) -> bool:
    known: set[str] = set()
    for message in messages:
        known.update(call.id for call in message.tool_calls)
        if message.role is Role.TOOL and message.tool_call_id not in known:
            return False
    return True


def _split(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], list[tuple[Message, ...]]]:
    first_user = next((i for i, m in enumerate(messages) if m.role is Role.USER), None)
    if first_user is None:
        return messages, []
    cut = first_user + 1
    starts = [i for i in range(cut, len(messages)) if messages[i].role is Role.ASSISTANT]
    if not starts:
        return messages, []
    ends = [*starts[1:], len(messages)]
    turns = [messages[start:end] for start, end in zip(starts, ends, strict=True)]
    return messages[: starts[0]], turns


def _schema_bytes(tools: Sequence[ToolFacts]) -> int:
    return 2 + sum(len(t.name) + len(t.description.encode()) + len(t.parameters.encode()) + 48 for t in tools)


def _estimate(messages: tuple[Message, ...], dense: int, calibration: float) -> int:
    prose = overhead = 0
    for message in messages:
        size = len(message.content.encode())
        overhead += 8
        if message.role is Role.TOOL:
            dense += size + len(message.tool_call_id or "")
        else:
            prose += size
        for call in message.tool_calls:
            overhead += 12
            dense += len(call.id) + len(call.arguments.encode())
    tokens = math.ceil(prose / 3.5) + math.ceil(dense / 2.5) + overhead
    return math.ceil(tokens * max(1.0, calibration))
