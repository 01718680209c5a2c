"""What must hold when all is over: nothing lost, everything replayed, counted, exposed and audited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from codec.events import ModelReplied
from tests.simulation.invariants import Invariants
from tests.simulation.watch import Known, Recorded, Watch
from worker.runtime.replaying import ReplayReport

if TYPE_CHECKING:
    from tests.simulation.schedule import Simulation

__all__ = ["check_end"]

_ANSWERED: Final = "answer_given"
_CANCELLED: Final = "run_cancelled"


def check_end(sim: Simulation, replays: Mapping[str, ReplayReport]) -> None:
    """Check it; `replays` are the product's own reports by uuid."""
    must, watch = sim.invariants.must, sim.watch
    for uuid in sim.ledger.accepted:
        must(uuid in watch.by_uuid, "no lost run", None, uuid)
    for uuid, report in replays.items():
        must(report.equal, "replay is equal", watch.by_uuid[uuid], report.divergence)
    for known in watch.runs.values():
        must(known.row.final, "every run ends", known, known.row)
        _check_usage(sim.invariants, watch, known)
        _check_answered(sim, known)
        _check_audit(sim.invariants, watch, known)
    faults = [fault for process in sim.fleet.all for fault in process.loop.faults]
    must(not faults, "no exception that nobody caught", None, faults[:1])


def _replies(entries: Iterable[Recorded]) -> list[ModelReplied]:
    opened = [r.entry.event for r in entries if r.entry is not None and not r.entry.stale]
    return [event for event in opened if isinstance(event, ModelReplied)]


def _check_usage(invariants: Invariants, watch: Watch, known: Known) -> None:
    """Each answer is counted once; a run that continues another one begins with its count."""
    parent = watch.by_uuid.get(known.row.lineage_run or "")
    if not any(recorded.entry for recorded in known.entries):
        return  # it ended before it began, by somebody without a key
    before = 0 if parent is None else parent.row.input_tokens
    total = before + sum(event.reply.usage.input_tokens for event in _replies(known.entries))
    invariants.must(total == known.row.input_tokens, "usage is what was answered", known, total)


def _check_answered(sim: Simulation, known: Known) -> None:
    """Whatever was carried to a target that answered is known to have been answered there."""
    keys = {known.send_keys.get(event.send) for event in _replies(known.entries)}
    for send in sim.ledger.sends_of[known.row.uuid]:
        if send.key in keys:
            target = send.permit.target
            answered = sim.watch.answered(known.row.uid, target.provider, target.zone.value)
            left = [c for c in sim.watch.carried(known) if (c.kind, c.uid) not in answered]
            sim.invariants.must(not left, "exposure holds every answer", known, left)


def _check_audit(invariants: Invariants, watch: Watch, known: Known) -> None:
    """Every answer that was stored and every cancel is in the audit, with who it was."""
    audited = Counter(watch.audited(known.row.uuid))
    given = Counter((_ANSWERED, decided_by) for decided_by in watch.answered_by(known.row.uid))
    missing = given - audited
    invariants.must(not missing, "every answer is audited", known, missing)
    if known.row.status == "cancelled":
        cancels = [actor for decision, actor in audited if decision == _CANCELLED]
        invariants.must(len(cancels) > 0, "every cancel is audited", known, audited)
