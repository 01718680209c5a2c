"""Requeueing: a failed run goes on as a new one, from its last entry, with everything that it carries."""

from __future__ import annotations

from codec.errors import SchemaTooNewError
from codec.journal import ENTRY_VERSION
from codec.request import AgentRunRequest
from codec.request_codec import REQUEST_VERSION, AgentRunRequestCodec
from codec.suspended import STATE_VERSION, SuspendedRunState
from codec.vocabulary import Origin, ResumeCause
from worker.core.chain import GENESIS
from worker.core.errors import ProtocolError
from worker.core.machine import continued
from worker.ports.records import Document, NewRun, RunRow
from worker.ports.sealing import SealingError
from worker.runtime.errors import ConflictError, UnavailableError
from worker.runtime.journalling import state_place
from worker.runtime.load import UnreadableError, load_request, load_state
from worker.runtime.parts import Parts
from worker.runtime.traces import source_rows

__all__ = ["requeued"]


async def requeued(parts: Parts, row: RunRow) -> NewRun:
    """Build the new run. One that was composed continues from its state; one that never was is queued anew.

    Errors: `UnavailableError` when the failed run cannot be read here, `ConflictError` when it was purged.
    """
    if row.purged:
        raise ConflictError("purged", "the run's content was purged, so it cannot be continued", uuid=row.uuid)
    try:
        old = parts.sealer.unwrap(row.wrapped_key, row.key_id)
        state = await load_state(parts, row, old)
        composed = state is not None and await _was_composed(parts, row, state)
        request = None if composed else await load_request(parts, row, old)
    except (UnreadableError, SealingError, SchemaTooNewError):
        raise UnavailableError(
            "unreadable", "the run cannot be read here, so it cannot be continued", uuid=row.uuid
        ) from None
    key, uuid = parts.sealer.new_key(), parts.clock.uuid()
    if state is not None and composed:
        state = _continued(state, uuid)
        kind, version, body = "base", STATE_VERSION, state.encode()
        purpose, place = "state", state_place("base", 0)
    else:
        kind, version, body = "request", REQUEST_VERSION, _encoded(request)
        purpose = place = "request"
    payload = parts.sealer.seal(key.key, purpose, uuid, place, body)
    return NewRun(
        uuid=uuid,
        owner=row.owner,
        origin=Origin.REQUEUE,
        configuration_uid=row.configuration_uid,
        configuration=row.configuration,
        wrapped_key=key.wrapped,
        key_id=key.key_id,
        doc_version=max(STATE_VERSION, ENTRY_VERSION, REQUEST_VERSION),
        documents=(Document(kind=kind, version=version, seq=0, payload=payload),),
        cause=ResumeCause.REQUEUE,
        head=GENESIS,
        # Of two who continue it at once, one: else what is open in it would be open twice, under one key.
        idempotency=parts.sealer.keyed_hash("requeue", row.uuid.encode()),
        lineage_run=row.uuid,
        lineage_at=row.seq,
        sources=source_rows(state) if state is not None and composed else (),
    )


def _continued(state: SuspendedRunState, uuid: str) -> SuspendedRunState:
    try:
        return continued(state, uuid)
    except ProtocolError:
        # The row says failed and the journal says otherwise: somebody else wrote one of them.
        raise UnavailableError("unreadable", "the run's journal does not end in a failure", uuid=state.run) from None


async def _was_composed(parts: Parts, row: RunRow, state: SuspendedRunState) -> bool:
    """Whether the state holds what the run was given: not when it ended unread, or before the catalogue could be."""
    if state.configuration == 0:
        return False
    if row.seq > 1 or state.facts.readable:
        return True
    return await parts.store.document(row.uid, "request") is None


def _encoded(request: AgentRunRequest | None) -> bytes:
    if request is None:  # pragma: no cover - only a composed run has no request here
        raise AssertionError("a run without a state has a request")
    return AgentRunRequestCodec.dehydrate(request)
