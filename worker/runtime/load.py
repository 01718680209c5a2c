"""Loading a run: snapshot, fold of the journal after it, inbox. One way for resume, recovery, retry and show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from codec.answers import Answer
from codec.errors import CodecError, SchemaTooNewError
from codec.journal import ENTRY_VERSION, CommandReference, Entry, unsealed_event
from codec.request import AgentRunRequest
from codec.request_codec import AgentRunRequestCodec
from codec.suspended import SuspendedRunState
from codec.vocabulary import Phase
from worker.core.chain import GENESIS
from worker.core.errors import ProtocolError
from worker.core.replay import fold
from worker.ports.records import Document, EntryRow, InboxRow, RunRow, Stored
from worker.ports.sealing import SealBrokenError, Sealer
from worker.runtime.journalling import entry_link, entry_place, state_place
from worker.runtime.parts import Parts

__all__ = [
    "Journal",
    "Loaded",
    "UnreadableError",
    "damaged_at",
    "entry_at",
    "journal_of",
    "load_held",
    "load_request",
    "load_state",
    "open_answer",
]


class UnreadableError(Exception):
    """What is stored of a run cannot be read as what it was: changed, cut, or malformed.

    Shape: `sequence` is the journal entry at fault, 0 for a document. Nothing was changed.
    """

    def __init__(self, what: str, sequence: int = 0) -> None:
        super().__init__(f"{what} cannot be read")
        self.what = what
        self.sequence = sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A run's whole journal: what it began with, its rows, and its entries as far as they can be read."""

    base: SuspendedRunState | None
    rows: tuple[EntryRow, ...]


async def load_request(parts: Parts, row: RunRow, key: bytes) -> AgentRunRequest:
    """Read the queued request. Errors: `UnreadableError`; `SchemaTooNewError` leaves it in place."""
    return _request(parts, row, key, await parts.store.document(row.uid, "request"))


def _request(parts: Parts, row: RunRow, key: bytes, document: Document | None) -> AgentRunRequest:
    if document is None:
        raise UnreadableError("request")
    try:
        data = parts.sealer.open(key, "request", row.uuid, "request", document.payload)
        request = AgentRunRequestCodec.rehydrate(data)
    except SchemaTooNewError:
        raise
    except (CodecError, SealBrokenError) as error:
        raise UnreadableError("request") from error
    if not isinstance(request.configuration, int):
        raise UnreadableError("request")  # a row is only ever written with a uid
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A held run as it is stored.

    Shape: a run that was not composed yet has no `state` and a `request`. `answer` waits in the inbox, unopened.
    `drained` = its last segment released it with its last commands unperformed.
    """

    state: SuspendedRunState | None
    request: AgentRunRequest | None
    answer: InboxRow | None
    drained: bool


async def load_held(parts: Parts, row: RunRow, key: bytes) -> Loaded:
    """Load a run whose lease is ours: its journal stands still, and its chain must end in the head.

    A snapshot of a working phase is written by a drain and by nothing else, so one that is the newest there is says
    that nothing was performed since; it is sealed with its sequence. Errors: `UnreadableError`, `SchemaTooNewError`.
    """
    stored = await parts.store.stored(row.uid)
    base, after = _snapshot(parts, row, key, stored)
    _must_be_whole(row, stored.entries, after)
    state = _folded(parts, row, key, base, stored.entries)
    working = base is not None and base.phase in (Phase.MODEL, Phase.TOOLS)
    return Loaded(
        state=state,
        request=_request(parts, row, key, stored.document("request")) if state is None else None,
        answer=stored.answer,
        drained=working and after > 0 and not stored.entries,
    )


async def load_state(parts: Parts, row: RunRow, key: bytes) -> SuspendedRunState | None:
    """Rebuild the state: the last snapshot and every entry after it; None before the first entry.

    Errors: `UnreadableError`, `SchemaTooNewError`.
    """
    stored = await parts.store.stored(row.uid)
    return _folded(parts, row, key, _snapshot(parts, row, key, stored)[0], stored.entries)


def _folded(
    parts: Parts, row: RunRow, key: bytes, base: SuspendedRunState | None, rows: Sequence[EntryRow]
) -> SuspendedRunState | None:
    entries = [entry_at(parts.sealer, row, key, r) for r in rows]
    try:
        return fold(base, entries)
    except ProtocolError as error:
        raise UnreadableError("journal") from error


def open_answer(
    parts: Parts, row: RunRow, key: bytes, state: SuspendedRunState, stored: InboxRow | None
) -> Answer | None:
    """Open the answer to the state's question, if it is there. Errors: `UnreadableError`, `SchemaTooNewError`."""
    if state.question is None or stored is None or stored.question != state.question.id:
        return None
    try:
        return Answer.decode(parts.sealer.open(key, "answer", row.uuid, stored.question, stored.payload))
    except SchemaTooNewError:
        raise
    except (CodecError, SealBrokenError) as error:
        raise UnreadableError("answer") from error


async def journal_of(parts: Parts, row: RunRow, key: bytes) -> Journal:
    """Read everything that replay needs. Errors: `UnreadableError` when what the run began with cannot be read."""
    document = await parts.store.document(row.uid, "base")
    base = None if document is None else _decode_state(parts.sealer, row, key, document)
    return Journal(base=base, rows=tuple(await parts.store.entries(row.uid)))


def damaged_at(
    row: RunRow, rows: Sequence[EntryRow], *, prev: bytes = GENESIS, first: int = 1
) -> tuple[int, str] | None:
    """Find the first entry that is missing, out of place or not what the chain says; None when all is whole.

    Shape: (sequence, cause) with the cause damaged or missing.
    """
    expected = first
    for entry in rows:
        if entry.seq != expected:
            return expected, "missing"
        if entry.prev != prev:
            return max(first, expected - 1), "damaged"
        prev = entry_link(row.uuid, entry.token, entry)
        expected += 1
    if row.seq >= expected:
        return expected, "missing"
    return None if prev == row.head else (max(first, expected - 1), "damaged")


def entry_at(sealer: Sealer, row: RunRow, key: bytes, stored: EntryRow) -> Entry:
    """Open one entry. Errors: `UnreadableError` with its sequence, `SchemaTooNewError`."""
    try:
        if not stored.payload:
            return _unsealed(stored)
        return Entry.decode(sealer.open(key, "entry", row.uuid, entry_place(stored), stored.payload))
    except SchemaTooNewError:
        raise
    except (CodecError, SealBrokenError, msgspec.MsgspecError) as error:
        raise UnreadableError("journal", stored.seq) from error


def _unsealed(stored: EntryRow) -> Entry:
    """Rebuild an entry of somebody without a key; it always ended the run, and its clear side says how."""
    meta = msgspec.json.decode(stored.meta, type=dict[str, object])
    event = unsealed_event(stored.kind, str(meta.get("by", "")), 0, stored.policy)
    finish = CommandReference(kind="finish", word=str(meta.get("final", "")))
    return Entry(version=ENTRY_VERSION, event=event, commands=(finish,))


def _snapshot(parts: Parts, row: RunRow, key: bytes, stored: Stored) -> tuple[SuspendedRunState | None, int]:
    document = stored.document("state") or stored.document("base")
    if document is None:
        return None, 0
    return _decode_state(parts.sealer, row, key, document), document.seq


def _decode_state(sealer: Sealer, row: RunRow, key: bytes, document: Document) -> SuspendedRunState:
    try:
        return SuspendedRunState.decode(
            sealer.open(key, "state", row.uuid, state_place(document.kind, document.seq), document.payload)
        )
    except SchemaTooNewError:
        raise
    except (CodecError, SealBrokenError) as error:
        raise UnreadableError("state") from error


def _must_be_whole(row: RunRow, rows: Sequence[EntryRow], after: int) -> None:
    if not rows:
        if row.seq != after:
            raise UnreadableError("journal", after + 1)
        return
    found = damaged_at(row, rows, prev=rows[0].prev, first=after + 1)
    if found is not None:
        raise UnreadableError("journal", found[0])
