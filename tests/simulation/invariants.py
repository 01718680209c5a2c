"""What must hold after every transaction, at every send and execution, whenever time moves, and in the end.

The first broken one ends the schedule. Each is named; the name is what a planted fault is recognised by.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from codec.events import ModelReplied
from codec.vocabulary import ToolEffect
from tests.simulation.fleet import DRAIN_S, LEASE_S, SWEEP_S
from tests.simulation.ledger import Execution, Send
from tests.simulation.watch import GIVEN, Change, Inbox, Known, Recorded, Row, Watch

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.schedule import Simulation

__all__ = ["TTL_S", "Invariants", "Violation"]

TTL_S: Final = min(2.0, LEASE_S / 2)
"""Seconds that a permit lasts, as the product promises: two, or half of a short lease."""
_EPSILON: Final = 0.001
"""SQLite's clock counts days in doubles: forty microseconds. Ten times that, and more."""

_LATEST_S: Final = SWEEP_S + 0.75
"""Seconds that a due run waits at most: one sweep, and as long as a sweeper's own questions and messages take."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, run: str, detail: str) -> None:
        super().__init__(f"{invariant}: {run}: {detail}")
        self.invariant = invariant
        self.run = run
        self.detail = detail


class Invariants:
    """Checks a simulation while it runs. `broken` is the first violation."""

    def __init__(self, sim: Simulation, watch: Watch) -> None:
        self.broken: Violation | None = None
        self._sim = sim
        self._watch = watch
        self._steady_since = 0.0

    def must(self, holds: bool, invariant: str, known: Known | None, detail: object) -> None:
        """Say that something has to hold; the first that does not is what broke."""
        if not holds and self.broken is None:
            run = "-" if known is None else f"run {known.row.uid}"
            self.broken = Violation(invariant, run, str(detail))

    # --- after every transaction

    def committed(self, process: Process) -> list[Change]:
        """Check what a transaction did; gives it."""
        now = self._sim.kernel.now
        changes = self._watch.read(now)
        for change in changes:
            if change.old is None:
                self.must(change.new.seq == 0, "no lost run", change.known, "a run begins in the middle")
                self._check_row(change.known)
                self._check_lineage(change.new, change.known)
            else:
                self._check_moved(process, change, change.old, now)
            for recorded in change.entries:
                self._check_entry(change, recorded)
                self._watch.learn(change.known, recorded, now)
            self.must(change.known.head == change.new.head, "chain", change.known, "the head is another")
            self._check_answers(change, now)
        return changes

    def _check_lineage(self, row: Row, known: Known) -> None:
        same = [k for k in self._watch.runs.values() if row.lineage_run and k.row.lineage_run == row.lineage_run]
        self.must(len(same) <= 1, "a failed run is continued once", known, [k.row.uid for k in same])

    def _check_row(self, known: Known) -> None:
        row = known.row
        acts = row.due_at is not None or (row.waits and row.cause is None) or row.final
        self.must(acts, "no lost run", known, f"nobody will ever act on {row}")
        spoilt = row.reason == "corrupt" or '"corrupt"' in (row.blocked or "")
        self.must(not spoilt, "nothing is unreadable", known, f"{row.reason} {row.blocked}")
        self.must(not row.final or row.reason is not None, "final is final", known, "an end without a reason")

    def _check_moved(self, process: Process, change: Change, old: Row, now: float) -> None:
        known, new = change.known, change.new
        self._check_row(known)
        wanted = list(range(old.seq + 1, new.seq + 1))
        self.must(
            [r.row.seq for r in change.entries] == wanted, "sequence without gaps", known, f"{old.seq} to {new.seq}"
        )
        if old.final:
            kept = (new.status, new.reason) == (old.status, old.reason)
            self.must(kept, "final is final", known, f"{old.status} became {new.status} {new.reason}")
            grows = new.seq > old.seq
            self.must(not grows or old.token is not None, "final is final", known, "entries after the end")
        if change.entries:
            tokens = {r.row.token for r in change.entries}
            self.must(tokens == {old.token or ""}, "one lease's writes", known, f"written by {process.name}")
        if new.token != old.token:
            self._check_lease(process, change, old, now)
        elif new.due_at != old.due_at and new.token is not None:
            self.must(old.holder == process.name, "one lease's writes", known, f"{process.name} renewed it")

    def _check_lease(self, process: Process, change: Change, old: Row, now: float) -> None:
        known, new = change.known, change.new
        due = old.due_at is not None and old.due_at <= now + _EPSILON
        if new.token is not None:
            holder = self._sim.fleet.named(old.holder)
            taken = old.status == "running" and holder is not None and not self._sim.unsteady
            well = holder is not None and holder.working and now - holder.disturbed_at > LEASE_S + SWEEP_S
            self.must(
                not (taken and well),
                "no run is taken from the living",
                known,
                f"{process.name} takes it from {old.holder}",
            )
            self.must(due and not old.final, "one lease's writes", known, f"{process.name} took what is not due")
            self.must(new.segment == old.segment + 1, "one lease's writes", known, "a claim is no segment")
            keys = process.sealer.key_ids
            self.must(new.key_id in keys, "one lease's writes", known, f"{process.name} has not its key")
            self.must(self._watch.active_key in keys, "who lacks the active key drives nothing", known, process.name)
        else:
            dead = old.status == "cancelled" and due
            self.must(dead or old.holder == process.name, "one lease's writes", known, f"{process.name} let it go")

    def _check_entry(self, change: Change, recorded: Recorded) -> None:
        known, row = change.known, recorded.row
        self.must(row.prev == known.head, "chain", known, f"entry {row.seq} does not follow")
        if recorded.entry is None or recorded.stale:
            return
        if any(r.row.kind == "cancel_requested" for r in change.entries):
            acts = [c.kind for c in recorded.entry.commands if c.kind != "finish"]
            self.must(not acts, "final is final", known, f"{row.kind} still commands {acts}")
            return
        live = self._watch.version
        self.must(row.policy == live, "no act under an old policy", known, f"{row.kind} under {row.policy}, not {live}")
        if row.kind in GIVEN:
            policy = self._watch.policies[row.policy]
            refusal = policy.refusal(known.row.configuration_uid, self._watch.carried(known))
            self.must(refusal is None, "gated before an answer acts", known, refusal)
            question = getattr(recorded.entry.event, "question", "")
            self.must(question not in known.folded, "an answer is used once", known, question)
            known.folded.add(question)
        event = recorded.entry.event
        if isinstance(event, ModelReplied):
            self._check_reply(known, event)

    def _check_reply(self, known: Known, event: ModelReplied) -> None:
        key = known.send_keys.get(event.send)
        send = next((s for s in self._sim.ledger.sends_of[known.row.uuid] if s.key == key), None)
        tokens = event.reply.usage.input_tokens
        self.must(send is not None and send.tokens == tokens, "usage is what was answered", known, tokens)

    def _check_answers(self, change: Change, now: float) -> None:
        known, old = change.known, change.old
        used = [new for before, new in change.answers if new.consumed_seq is not None]
        given = [r.row.seq for r in change.entries if r.row.kind in GIVEN]
        self.must([u.consumed_seq for u in used] == given, "an answer is used once", known, f"folded {given}")
        for before, new in change.answers:
            if new.consumed_seq is not None:
                once = before is not None and before.consumed_seq is None
                self.must(once, "an answer is used once", known, new.question)
            elif old is not None:
                self._check_stored(change, old, before, new, now)

    def _check_stored(self, change: Change, old: Row, before: Inbox | None, new: Inbox, now: float) -> None:
        known = change.known
        open_ = old.waits and old.question == new.question and (old.expires_at is None or old.expires_at > now)
        self.must(open_, "only the open question is answered", known, f"{new.question} of {old.question}")
        replaceable = before is None or (before.consumed_seq is None and old.blocked is not None)
        self.must(replaceable, "one answer", known, f"{new.decided_by} replaced {before}")
        told = (change.new.cause, change.new.answered_by) == ("answer", new.decided_by)
        self.must(told and change.new.due_at is not None, "no lost run", known, "answered, and not due")
        self.must(self._watch.answer_of(known, new).question == new.question, "one answer", known, new.question)

    def started(self, first: str, uuid: str) -> None:
        """Check that the same key gave the same run."""
        self.must(first == uuid, "one run per key", self._watch.by_uuid.get(uuid), f"the first was {first}")

    def told(self, code: str, uuid: str | None) -> None:
        """Check what a person was told: nobody spoils anything here."""
        self.must(code != "corrupt", "nothing is unreadable", self._watch.by_uuid.get(uuid or ""), "says a desk")

    # --- whatever reaches the world outside

    def sent(self, process: Process, send: Send) -> None:
        """Check a send at the moment at which it leaves."""
        now, known = self._sim.kernel.now, self._watch.by_uuid.get(send.run)
        self.must(known is not None, "no send that is not committed", None, send.run)
        if known is None:
            return
        committed = known.sends.get(send.key)
        self.must(committed is not None, "no send that is not committed", known, "its step is not in the journal")
        fresh = committed is not None and now - committed <= TTL_S + _EPSILON
        self.must(fresh, "no send on an old permit", known, f"committed at {committed}")
        again = [s for s in self._sim.ledger.sends_of[send.run] if s.key == send.key]
        self.must(len(again) == 1, "no send twice", known, f"{send.key} left {len(again)} times")
        self.must(self._holds(process, known), "one lease's acts", known, f"{process.name} sends")
        self._check_permit(known, send, now)
        self._check_exposure(known, send)
        limit, flying = send.permit.target.max_concurrency, self._sim.ledger.flying(process.name, send)
        self.must(not limit or flying <= limit, "no more sends than slots", known, f"{flying} at once")

    def _holds(self, process: Process, known: Known) -> bool:
        return known.row.holder == process.name

    def _check_permit(self, known: Known, send: Send, now: float) -> None:
        target = send.permit.target
        policy = self._watch.policies.get(target.version)
        current = policy is not None and policy.until >= now - TTL_S - _EPSILON
        self.must(current, "no send above a ceiling", known, f"permitted under {target.version}")
        if policy is None:
            return
        carried = self._watch.carried(known)
        refusal = policy.refusal(known.row.configuration_uid, carried)
        self.must(refusal is None, "no send above a ceiling", known, refusal)
        meant = policy.zones.get(target.identifier) == (target.provider, target.zone.value)
        self.must(meant, "the permit is the target", known, target.identifier)
        self.must(policy.is_owner_enabled(known.row.owner), "no send of a disabled owner", known, known.row.owner)
        kinds = {c.kind for c in carried}
        texts = {kind for kind, _ in send.carries}
        self.must(texts <= kinds, "no text that is not carried", known, f"{texts} of {kinds}")

    def _check_exposure(self, known: Known, send: Send) -> None:
        target = send.permit.target
        sends = [
            s
            for s in self._sim.ledger.sends_of[send.run]
            if (s.permit.target.provider, s.permit.target.zone) == (target.provider, target.zone)
        ]
        exposed = self._watch.exposed(known.row.uid, target.provider, target.zone.value)
        for carried in self._watch.carried(known):
            counted = exposed.get((carried.kind, carried.uid), 0)
            self.must(counted >= len(sends), "exposure holds every send", known, f"{carried} {counted}/{len(sends)}")

    def executed(self, process: Process, execution: Execution) -> None:
        """Check a tool's execution at the moment at which it happens."""
        now, known = self._sim.kernel.now, self._watch.by_uuid.get(execution.run)
        released = [] if known is None else known.calls.get(execution.call, [])
        self.must(len(released) > 0, "no call that is not committed", known, execution)
        if known is None or not released:
            return
        key, at = released[-1]
        self.must(execution.key == key, "one key per call", known, f"{execution.key} is not {key}")
        self.must(now - at <= TTL_S + _EPSILON, "no call on an old permit", known, f"released at {at}")
        self.must(self._holds(process, known), "one lease's acts", known, f"{process.name} executes")
        times = self._sim.ledger.executions_of[execution.ticket]
        self.must({e.key for e in times} == {key}, "one key per call", known, execution)
        self._check_released(known, execution)
        if execution.tool.effect is ToolEffect.NON_IDEMPOTENT_WRITE:
            self._check_once(known, execution, len(times))

    def _check_released(self, known: Known, execution: Execution) -> None:
        if not execution.tool.gated:
            return
        line = list(self._watch.line(known))
        by = next((k for k in line if execution.call in k.approved), None)
        self.must(by is not None, "no write without a person", known, execution)
        edit = None if by is None else by.approved[execution.call]
        if edit is not None:
            same = json.loads(execution.arguments) == json.loads(edit)
            self.must(same, "what is executed was approved", known, execution.arguments)

    def _check_once(self, known: Known, execution: Execution, times: int) -> None:
        line = list(self._watch.line(known))
        allowed = 1 + sum(k.told_to_run[execution.call] for k in line)
        self.must(times <= allowed, "once means once", known, f"{execution} for the {times}. time")
        told = any(execution.call in k.happened for k in line)
        self.must(not told, "once means once", known, "a person said that it had happened")

    # --- when a process leaves

    def left(self, process: Process, took_s: float) -> None:
        """Check that a drained process holds nothing any more, unless something of it did not come back in time.

        A run that is stored as held in the very moment in which its process has gone is left to its lease.
        """
        ours = [k for k in self._watch.runs.values() if k.row.holder == process.name and not k.row.final]
        held = [known for known in ours if known.row.seq > 0]
        if not (self._sim.unsteady or process.gave_up) and took_s < DRAIN_S:
            self.must(not held, "who leaves lets go", held[0] if held else None, f"{process.name} left")

    # --- whenever time moves

    def moved(self) -> None:
        """Check that nothing that is due waits for longer than one sweep of a worker that could take it."""
        sim, now = self._sim, self._sim.kernel.now
        if sim.unsteady:
            self._steady_since = now
        if self._watch.next_due > now:
            return
        able = []
        for worker in sim.fleet.workers:
            if worker.host.free <= 0 or not worker.working:
                worker.busy_at = now
            if self._watch.active_key in worker.sealer.key_ids:
                able.append((max(self._steady_since, worker.busy_at, worker.disturbed_at), worker.sealer.key_ids))
        if not any(now - since > _LATEST_S for since, _ in able):
            return
        for known in self._watch.runs.values():
            row = known.row
            if row.due_at is None or row.final:
                continue
            due = max(row.due_at, known.due_since)
            left = any(now - max(since, due) > _LATEST_S and row.key_id in keys for since, keys in able)
            self.must(not left, "no due run is left", known, f"due for {now - due:.3f} s")
