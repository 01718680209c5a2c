"""What a step leaves behind for auditors: carried sources, exposures and audit rows. Names, classes and uids only."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from codec.commands import CallModel
from codec.decisions import Decision, ToolDenial
from codec.events import ModelFailed, ModelReplied
from codec.suspended import SuspendedRunState
from codec.vocabulary import ExposureState
from worker.core.sources import carried_sources
from worker.ports.records import AuditRow, ExposureWrite, SourceRow
from worker.runtime.hold import Hold
from worker.runtime.metadata import Stepped

__all__ = ["audits_of", "exposures_of", "source_rows"]


def source_rows(state: SuspendedRunState) -> tuple[SourceRow, ...]:
    """Give the carried sources as rows."""
    return tuple(
        SourceRow(kind=c.kind, uid=c.uid, name=c.name, origin=c.origin, seen=c.seen, text_hash=c.text_hash)
        for c in state.carried
    )


def exposures_of(hold: Hold, steps: Sequence[Stepped], *, sent: bool) -> tuple[ExposureWrite, ...]:
    """Give the exposures of these steps: an answered or failed earlier send, and the sends that they commit."""
    found: list[ExposureWrite] = []
    for stepped in steps:
        found.extend(_landed(hold, stepped))
        for command in stepped.result.commands:
            if sent and isinstance(command, CallModel):
                found.extend(_sent(stepped.result.state, command))
    return _merged(found)


def _merged(found: list[ExposureWrite]) -> tuple[ExposureWrite, ...]:
    # One row per key and transaction: the answer to the last send and the next one often go to the same target.
    rows: dict[tuple[object, ...], ExposureWrite] = {}
    for write in found:
        key = (write.kind, write.uid, write.data_class, write.provider_uid, write.model, write.zone)
        before = rows.get(key)
        rows[key] = write if before is None else _both(before, write)
    return tuple(rows.values())


def _both(before: ExposureWrite, write: ExposureWrite) -> ExposureWrite:
    # What was answered stays so; what failed is open again, because its text is on its way once more.
    state = before.state if before.state is ExposureState.ANSWERED else write.state
    return replace(write, sends=before.sends + write.sends, failures=before.failures + write.failures, state=state)


def _landed(hold: Hold, stepped: Stepped) -> tuple[ExposureWrite, ...]:
    if isinstance(stepped.event, ModelReplied):
        state = ExposureState.ANSWERED
    elif isinstance(stepped.event, ModelFailed):
        state = ExposureState.FAILED
    else:
        return ()
    failures = int(state is ExposureState.FAILED)
    return tuple(replace(e, state=state, sends=0, failures=failures) for e in hold.last_sent)


def _sent(state: SuspendedRunState, command: CallModel) -> tuple[ExposureWrite, ...]:
    target = command.permit.target
    judged = {(s.kind, s.uid): s.declared for s in carried_sources(state.facts, state.carried)}
    mode = state.facts.enforcement
    return tuple(
        ExposureWrite(
            kind=c.kind,
            uid=c.uid,
            identifier=c.name,
            origin=c.origin,
            data_class=judged.get((c.kind, c.uid), c.seen),
            provider_uid=target.provider,
            provider=target.identifier,
            model=target.model,
            zone=target.zone,
            mode=mode,
            state=ExposureState.POSSIBLE,
            sends=1,
        )
        for c in state.carried
    )


def audits_of(hold: Hold, steps: Sequence[Stepped]) -> tuple[AuditRow, ...]:
    """Give the audit rows of these steps: fresh refusals and would-be refusals, and denied tools."""
    found: list[AuditRow] = []
    for stepped in steps:
        found.extend(_gate_row(hold, d) for d in stepped.result.decisions if d.fresh)
        found.extend(_tool_row(hold, d) for d in stepped.result.denials)
    return tuple(found)


def _gate_row(hold: Hold, decision: Decision) -> AuditRow:
    return AuditRow(
        decision="context_blocked",
        actor=hold.actor,
        via=hold.via,
        run=hold.row.uuid,
        mode=decision.mode,
        source=decision.source,
        data_class=decision.data_class,
        zone=decision.zone,
        ceiling=decision.ceiling,
        provider=decision.provider,
        configuration=decision.configuration,
        tool=decision.tool,
        detail=None if decision.readable else "catalogue unreadable",
    )


def _tool_row(hold: Hold, denial: ToolDenial) -> AuditRow:
    return AuditRow(
        decision="tool_denied",
        actor=hold.actor,
        via=hold.via,
        run=hold.row.uuid,
        mode="observe" if denial.observed else "enforce",
        data_class=denial.data_class,
        zone=denial.zone,
        ceiling=denial.ceiling,
        configuration=denial.configuration,
        tool=denial.tool if denial.reason != "not_registered" else None,
        detail=denial.reason,
    )
