"""What is known of every run after each transaction: its row, its opened journal, its answers. Facts only, no verdicts.

Read over the bare connection, with a ring that holds every key there will ever be.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from codec.answers import Answer
from codec.events import DecisionGiven, OutcomeGiven
from codec.journal import Entry
from tests.simulation.content import ring_of
from tests.simulation.oracle import Carried, Policy, carried_by, read_policy
from worker.adapters.sealing import RingSealer
from worker.core.chain import GENESIS
from worker.ports.records import EntryRow
from worker.runtime.journalling import entry_link, entry_place

__all__ = ["GIVEN", "Change", "Inbox", "Known", "Recorded", "Row", "Watch"]

GIVEN: Final = ("decision_given", "input_given", "outcome_given")
_ENOUGH_KEYS: Final = 4


class Row(NamedTuple):
    """The run's row, as far as anything is checked of it."""

    uid: int
    uuid: str
    status: str
    seq: int
    head: bytes
    token: str | None
    holder: str | None
    segment: int
    due_at: float | None
    cause: str | None
    question: str | None
    expires_at: float | None
    answered_by: str | None
    blocked: str | None
    reason: str | None
    rounds: int
    input_tokens: int
    owner: str
    idempotency: str | None
    configuration_uid: int
    lineage_run: str | None
    key_id: str

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.status in ("completed", "failed", "cancelled")

    @property
    def waits(self) -> bool:
        """Whether it waits for a person."""
        return self.status in ("waiting_for_approval", "waiting_for_input")


class Inbox(NamedTuple):
    """One answer."""

    run_uid: int
    question: str
    decided_by: str
    payload: bytes
    consumed_seq: int | None


class Recorded(NamedTuple):
    """One journal entry, opened; `entry` is None for those that were written without a key."""

    row: EntryRow
    entry: Entry | None

    @property
    def stale(self) -> bool:
        """Whether it came too late to change anything."""
        return self.entry is not None and self.entry.stale


@dataclass(slots=True)
class Known:
    """One run. Times are virtual seconds of the commit."""

    row: Row
    key: bytes
    head: bytes = GENESIS
    due_since: float = 0.0
    """When its row began to say what it says about when it is due."""
    entries: list[Recorded] = field(default_factory=list)
    sends: dict[str, float] = field(default_factory=dict)
    """Committed sends by key."""
    send_keys: dict[str, str] = field(default_factory=dict)
    """Their keys by id."""
    calls: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    """Committed calls by id: key and time of each time that one was released."""
    approved: dict[str, str | None] = field(default_factory=dict)
    """Calls that somebody who might let through, with the arguments that were approved in place of the model's."""
    told_to_run: Counter[str] = field(default_factory=Counter)
    happened: set[str] = field(default_factory=set)
    folded: set[str] = field(default_factory=set)
    carried: tuple[Carried, ...] | None = None


class Change(NamedTuple):
    """What one transaction did to one run."""

    known: Known
    old: Row | None
    new: Row
    entries: list[Recorded]
    answers: list[tuple[Inbox | None, Inbox]]


class Watch:
    """Reads what changed."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.runs: dict[int, Known] = {}
        self.by_uuid: dict[str, Known] = {}
        self.policies: dict[int, Policy] = {}
        self.version = 0
        self.next_due = float("inf")
        """When the first run is due; it may be now."""
        self.active_key = ""
        self._database = database
        self._sealer = RingSealer(ring_of(_ENOUGH_KEYS))
        self._inbox: dict[tuple[int, str], Inbox] = {}
        self._changes = -1
        self._select = f"SELECT {', '.join(Row._fields)} FROM run ORDER BY uid"

    @property
    def policy(self) -> Policy:
        """The policy that is live."""
        return self.policies[self.version]

    def line(self, known: Known) -> Iterator[Known]:
        """Give a run and those that it continues."""
        found: Known | None = known
        while found is not None:
            yield found
            found = self.by_uuid.get(found.row.lineage_run or "")

    def carried(self, known: Known) -> tuple[Carried, ...]:
        """Give what a composed run carries."""
        if known.carried is None:
            known.carried = carried_by(self._database, known.row.uid)
        return known.carried

    def exposed(self, run_uid: int, provider: int, zone: str) -> dict[tuple[str, int], int]:
        """Give how many sends of each source the index knows for a run and a target."""
        query = "SELECT kind, source_uid, sum(sends) FROM exposure WHERE run_uid=? AND provider_uid=? AND zone=?"
        rows = self._database.execute(f"{query} GROUP BY kind, source_uid", (run_uid, provider, zone))
        return {(kind, uid): sends for kind, uid, sends in rows}

    def answered(self, run_uid: int, provider: int, zone: str) -> set[tuple[str, int]]:
        """Give the sources that are known to have been answered at a target."""
        query = "SELECT kind, source_uid FROM exposure WHERE run_uid=? AND provider_uid=? AND zone=?"
        return set(self._database.execute(f"{query} AND state = 'answered'", (run_uid, provider, zone)))

    def audited(self, uuid: str) -> list[tuple[str, str]]:
        """Give what the audit says of a run: decisions and actors."""
        return self._database.execute("SELECT decision, actor FROM audit WHERE run = ?", (uuid,)).fetchall()

    def answered_by(self, run_uid: int) -> list[str]:
        """Give who answered a run's questions."""
        return [inbox.decided_by for inbox in self._inbox.values() if inbox.run_uid == run_uid]

    def read(self, now: float) -> list[Change]:
        """Read what the last transaction changed; nothing when it wrote nothing."""
        if self._database.total_changes == self._changes:
            return []
        self._changes = self._database.total_changes
        self._read_policy(now)
        self.active_key = next(self._database.execute("SELECT id FROM key_ring WHERE active"), ("",))[0]
        answers = self._read_inbox()
        found = []
        for values in self._database.execute(self._select).fetchall():
            new = Row(*values)
            known = self.runs.get(new.uid)
            old = None if known is None else known.row
            mine = [pair for pair in answers if pair[1].run_uid == new.uid]
            if old != new or mine:
                known = self._add(new) if known is None else known
                known.due_since = known.due_since if old is not None and old.due_at == new.due_at else now
                known.row = new
                found.append(Change(known, old, new, self._read_entries(known), mine))
        due = (k.row.due_at for k in self.runs.values() if k.row.due_at is not None and not k.row.final)
        self.next_due = min(due, default=float("inf"))
        return found

    def _add(self, row: Row) -> Known:
        wrapped = self._database.execute("SELECT wrapped_key FROM run WHERE uid = ?", (row.uid,)).fetchone()[0]
        known = Known(row=row, key=self._sealer.unwrap(wrapped, row.key_id))
        self.runs[row.uid] = self.by_uuid[row.uuid] = known
        return known

    def _read_policy(self, now: float) -> None:
        version = self._database.execute("SELECT version FROM catalogue_version").fetchone()[0]
        if version != self.version:
            if self.version:
                self.policy.until = now
            self.version = version
            self.policies[version] = read_policy(self._database, version, now)

    def _read_inbox(self) -> list[tuple[Inbox | None, Inbox]]:
        changed = []
        rows = self._database.execute(f"SELECT {', '.join(Inbox._fields)} FROM inbox ORDER BY run_uid, question")
        for values in rows.fetchall():
            new = Inbox(*values)
            old = self._inbox.get((new.run_uid, new.question))
            if old != new:
                self._inbox[new.run_uid, new.question] = new
                changed.append((old, new))
        return changed

    def answer_of(self, known: Known, inbox: Inbox) -> Answer:
        """Open an answer."""
        return Answer.decode(self._sealer.open(known.key, "answer", known.row.uuid, inbox.question, inbox.payload))

    def _read_entries(self, known: Known) -> list[Recorded]:
        after = len(known.entries)
        if known.row.seq == after:
            return []
        query = (
            "SELECT seq, kind, segment, policy_version AS policy, prev, meta, payload, at, token FROM journal"
            " WHERE run_uid = ? AND seq > ? ORDER BY seq"
        )
        names = ("seq", "kind", "segment", "policy", "prev", "meta", "payload", "at", "token")
        rows = self._database.execute(query, (known.row.uid, after)).fetchall()
        found = [self._open(known, EntryRow(**dict(zip(names, row, strict=True)))) for row in rows]
        known.entries.extend(found)
        return found

    def _open(self, known: Known, row: EntryRow) -> Recorded:
        if not row.payload:
            return Recorded(row, None)
        opened = self._sealer.open(known.key, "entry", known.row.uuid, entry_place(row), row.payload)
        return Recorded(row, Entry.decode(opened))

    def learn(self, known: Known, recorded: Recorded, now: float) -> None:
        """Remember what an entry committed to, after it was checked."""
        known.head = entry_link(known.row.uuid, recorded.row.token, recorded.row)
        entry = recorded.entry
        if entry is None or entry.stale:
            return
        for command in entry.commands:
            if command.kind == "call_model":
                known.sends[command.key or ""] = now
                known.send_keys[command.id or ""] = command.key or ""
            elif command.kind == "call_tool":
                known.calls.setdefault(command.id or "", []).append((command.key or "", now))
        event: Any = entry.event
        if isinstance(event, DecisionGiven | OutcomeGiven):
            policy, row = self.policies[recorded.row.policy], known.row
            if policy.may_release(event.decider.name, row.owner, row.configuration_uid, write=True):
                self._learn_answer(known, event)

    @staticmethod
    def _learn_answer(known: Known, event: DecisionGiven | OutcomeGiven) -> None:
        if isinstance(event, DecisionGiven):
            known.approved.update({c: v.arguments for c, v in event.verdicts.items() if v.approve})
            return
        known.told_to_run[event.call] += event.run
        if event.happened is not None:
            known.happened.add(event.call)
