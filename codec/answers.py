"""Answers of people, as the inbox holds them until the next segment folds them. Sealed when stored."""

from __future__ import annotations

from typing import Final

import msgspec

from codec.actor import Actor
from codec.documents import decode_document, encode_document
from codec.errors import CodecError
from codec.events import CallVerdict

__all__ = ["ANSWER_VERSION", "Answer", "OutcomeWord"]

ANSWER_VERSION: Final = 1
"""1: first released form."""


class OutcomeWord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What became of one call: it happened with this result, it did not (`run`), or neither: stop the run."""

    call: str
    happened: str | None = None
    run: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer to one question. Exactly one of `verdicts`, `data` and `outcome` is set."""

    version: int = ANSWER_VERSION
    question: str
    decider: Actor
    via: str
    verdicts: dict[str, CallVerdict] | None = None
    data: str | None = None
    outcome: OutcomeWord | None = None

    def encode(self) -> bytes:
        """Write the answer as JSON with its version."""
        return encode_document(self)

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """Read an answer. Errors: `CodecError`, also when it holds not exactly one answer; `SchemaTooNewError`."""
        answer = decode_document(data, cls, "answer", ANSWER_VERSION, {})
        if sum(part is not None for part in (answer.verdicts, answer.data, answer.outcome)) != 1:
            raise CodecError("answer", "$", "not exactly one answer")
        if answer.outcome is not None and answer.outcome.run and answer.outcome.happened is not None:
            raise CodecError("answer", "$.outcome", "not exactly one outcome")
        return answer
