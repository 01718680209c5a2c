"""The journal: one entry per event, append-only. The sealed payload is `Entry`; the columns beside it hold no content.

`facts` of an event, its texts and its results stand here and nowhere else; commands are kept as references that replay
compares with what it computes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from codec.commands import CallModel, CallTool, Command, Finish, Preview, Suspend
from codec.decisions import Decision, ToolDenial
from codec.documents import decode_document, encode_document
from codec.errors import CodecError
from codec.events import CancelRequested, Event, StateCorrupted

__all__ = ["ENTRY_VERSION", "CommandReference", "Entry", "reference", "unsealed_event"]

ENTRY_VERSION: Final = 1
"""1: first released form."""


class CommandReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command without content, for comparison.

    Shape: `kind` is the command's tag. A send has its id, the target provider's uid, model, hop, transcript length and
    request hash; a call its id, key and effect; a suspend its question or retry; a finish its reason as `word`.
    """

    kind: str
    id: str | None = None
    target: int | None = None
    model: str | None = None
    hop: int = 0
    length: int | None = None
    hash: str | None = None
    key: str | None = None
    word: str | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One event, what followed from it, and whether it came too late to matter.

    Shape: `commands` and `decisions` in the machine's order. Stale entries changed nothing.
    """

    version: int
    event: Event
    commands: tuple[CommandReference, ...] = ()
    decisions: tuple[Decision, ...] = ()
    denials: tuple[ToolDenial, ...] = ()
    stale: bool = False

    def encode(self) -> bytes:
        """Write the entry as JSON; `version` is always there."""
        return encode_document(self)

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Read an entry of any released version. Errors: `CodecError`, `SchemaTooNewError`."""
        return decode_document(data, cls, "entry", ENTRY_VERSION, {})


def reference(command: Command) -> CommandReference:
    """Reduce a command to what is kept of it. Pure."""
    match command:
        case CallModel():
            target = command.permit.target
            return CommandReference(
                kind="call_model",
                id=command.send,
                target=target.provider,
                model=target.model,
                hop=command.hop,
                length=command.length,
                hash=command.request_hash,
                key=command.key,
            )
        case CallTool():
            return CommandReference(kind="call_tool", id=command.call, key=command.key, word=command.effect)
        case Preview():
            return CommandReference(kind="preview", id=command.call)
        case Suspend():
            word = command.blocked or command.kind
            return CommandReference(kind="suspend", id=command.question, word=word, length=command.parked)
        case Finish():
            return CommandReference(kind="finish", word=command.reason)


def unsealed_event(kind: str, by: str, elapsed_ms: int, policy: int) -> Event:
    """Rebuild the event of an entry that was appended without a payload, by somebody who holds no key.

    Errors: `CodecError` for any other kind: only a cancel and a corruption may stand unsealed.
    """
    nonce = "0" * 32
    if kind == "cancel_requested":
        return CancelRequested(nonce=nonce, elapsed_ms=elapsed_ms, policy=policy, by=by)
    if kind == "state_corrupted":
        return StateCorrupted(nonce=nonce, elapsed_ms=elapsed_ms, policy=policy)
    raise CodecError("entry", "$", "a payload is missing")
