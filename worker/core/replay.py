"""Replay: fold a journal through the same machine, and compare what it does now with what it did then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codec.journal import Entry, reference
from codec.suspended import SuspendedRunState
from worker.core.errors import ProtocolError
from worker.core.machine import step
from worker.core.work import Step

__all__ = ["Divergence", "Replayed", "entry_of", "fold", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where today's machine does something else.

    Shape: `cause` is damaged, missing, order, command or decision; both sides are content-free.
    """

    sequence: int
    cause: str
    recorded: tuple[object, ...] = ()
    computed: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found: entries that were folded, the first divergence or None, and the state after the last."""

    entries: int
    divergence: Divergence | None
    state: SuspendedRunState | None

    @property
    def equal(self) -> bool:
        """Whether everything was as recorded."""
        return self.divergence is None


def entry_of(result: Step, entry: Entry) -> Entry:
    """Give the entry that today's machine would write for the same event."""
    return Entry(
        version=entry.version,
        event=entry.event,
        commands=tuple(reference(command) for command in result.commands),
        decisions=result.decisions,
        denials=result.denials,
        stale=result.stale,
    )


def fold(state: SuspendedRunState | None, entries: Iterable[Entry]) -> SuspendedRunState | None:
    """Rebuild the state from a snapshot and the entries after it. Errors: `ProtocolError` for a broken order."""
    for entry in entries:
        state = step(state, entry.event).state
    return state


def replay(base: SuspendedRunState | None, entries: Sequence[Entry], first: int = 1) -> Replayed:
    """Fold and compare. Laws: what the machine wrote replays equal; one changed entry shows at its place."""
    state = base
    for sequence, entry in enumerate(entries, start=first):
        try:
            result = step(state, entry.event)
        except ProtocolError:
            return _parted(sequence, first, Divergence(sequence=sequence, cause="order"), state)
        found = _compare(sequence, entry, entry_of(result, entry))
        if found is not None:
            return _parted(sequence, first, found, state)
        state = result.state
    return Replayed(entries=len(entries), divergence=None, state=state)


def _parted(sequence: int, first: int, found: Divergence, state: SuspendedRunState | None) -> Replayed:
    return Replayed(entries=sequence - first, divergence=found, state=state)


def _compare(sequence: int, recorded: Entry, computed: Entry) -> Divergence | None:
    if recorded.decisions != computed.decisions or recorded.denials != computed.denials:
        return Divergence(
            sequence=sequence,
            cause="decision",
            recorded=(*recorded.decisions, *recorded.denials),
            computed=(*computed.decisions, *computed.denials),
        )
    if recorded.commands != computed.commands or recorded.stale != computed.stale:
        return Divergence(
            sequence=sequence,
            cause="command",
            recorded=recorded.commands,
            computed=computed.commands,
        )
    return None
