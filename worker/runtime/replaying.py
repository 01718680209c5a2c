"""Replaying stored runs: open the whole journal, check its chain, fold it through today's machine and compare."""

from __future__ import annotations

from dataclasses import dataclass

from codec.decisions import Decision
from codec.errors import SchemaTooNewError
from codec.journal import Entry
from codec.vocabulary import Verdict
from worker.core.replay import Divergence, replay
from worker.ports.records import RunRow
from worker.runtime.errors import ConflictError
from worker.runtime.load import Journal, UnreadableError, damaged_at, entry_at, journal_of
from worker.runtime.parts import Parts

__all__ = ["ReplayReport", "ReplayedSend", "replay_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSend:
    """One decision about a send: what was recorded and what is computed now."""

    sequence: int
    recorded: Verdict
    now: Verdict
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What replay found for one run."""

    uuid: str
    entries: int
    divergence: Divergence | None
    written_by: str | None
    sends: tuple[ReplayedSend, ...]

    @property
    def equal(self) -> bool:
        """Whether the whole journal is there and every step is as recorded."""
        return self.divergence is None


async def replay_run(parts: Parts, row: RunRow, *, until: int | None = None) -> ReplayReport:
    """Replay a run under its recorded policy, up to and including sequence `until`.

    Errors: `KeyUnavailableError` when this ring cannot open the run, `SchemaTooNewError` for a newer build's documents,
    `ConflictError` for a run that was purged.
    """
    _must_have_content(row)
    key = parts.sealer.unwrap(row.wrapped_key, row.key_id)
    try:
        row, journal = await _at_rest(parts, row, key)
    except UnreadableError:
        _must_have_content(await parts.store.run(row.uuid) or row)
        return _report(row, 0, Divergence(sequence=0, cause="damaged"), ())
    damage = damaged_at(row, journal.rows)
    rows = [r for r in journal.rows if until is None or r.seq <= until]
    if damage is not None and (until is None or damage[0] <= until):
        rows = [r for r in rows if r.seq < damage[0]]
    else:
        damage = None
    entries: list[Entry] = []
    try:
        for stored in rows:
            entries.append(entry_at(parts.sealer, row, key, stored))
    except SchemaTooNewError:
        raise
    except UnreadableError as error:
        damage = (error.sequence, "damaged")
    found = replay(journal.base, entries)
    divergence = found.divergence
    if divergence is None and damage is not None:
        divergence = Divergence(sequence=damage[0], cause=damage[1])
    return _report(row, found.entries, divergence, _sends(entries, divergence))


async def _at_rest(parts: Parts, row: RunRow, key: bytes) -> tuple[RunRow, Journal]:
    """Read row and journal of one moment: a run that works goes on between the two reads."""
    journal = await journal_of(parts, row, key)
    after = await parts.store.run(row.uuid)
    _must_have_content(after or row)
    if after is None or after.seq == row.seq:
        return row, journal
    journal = await journal_of(parts, after, key)
    return after, Journal(base=journal.base, rows=tuple(r for r in journal.rows if r.seq <= after.seq))


def _must_have_content(row: RunRow) -> None:
    """Errors: `ConflictError`. Without it a run that is purged at this very moment would look damaged."""
    if row.purged:
        raise ConflictError("purged", "the run's content was purged, so it cannot be replayed", uuid=row.uuid)


def _report(row: RunRow, entries: int, divergence: Divergence | None, sends: tuple[ReplayedSend, ...]) -> ReplayReport:
    return ReplayReport(uuid=row.uuid, entries=entries, divergence=divergence, written_by=None, sends=sends)


def _sends(entries: list[Entry], divergence: Divergence | None) -> tuple[ReplayedSend, ...]:
    found: list[ReplayedSend] = []
    for sequence, entry in enumerate(entries, start=1):
        if divergence is not None and sequence >= divergence.sequence:
            break
        for decision in entry.decisions:
            if decision.tool is None:
                found.append(_send(sequence, decision))
    return tuple(found)


def _send(sequence: int, decision: Decision) -> ReplayedSend:
    # Up to the divergence every decision was computed anew and found equal.
    return ReplayedSend(sequence=sequence, recorded=decision.verdict, now=decision.verdict, source=decision.source)
