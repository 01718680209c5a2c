"""What people see of a run: its row, and as much of its state as the reader may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codec.errors import CodecError, SchemaTooNewError
from codec.journal import ENTRY_VERSION
from codec.request import AgentRunRequest
from codec.request_codec import REQUEST_VERSION
from codec.suspended import STATE_VERSION, Call, CarriedSource, DroppedSource, SuspendedRunState
from codec.text import parse_json
from codec.vocabulary import BlockedReason, CallStatus, Origin, QuestionKind, Role, RunStatus, SourceKind, SourceOrigin
from codec.wire import (
    Shown,
    ShownBlocked,
    ShownCall,
    ShownCarried,
    ShownDropped,
    ShownForced,
    ShownInput,
    ShownLineage,
    ShownPreview,
    ShownUsage,
    ShownWaiting,
)
from worker.ports.records import RunRow, SourceRow
from worker.ports.sealing import KeyUnavailableError, SealingError
from worker.runtime.load import UnreadableError, load_request, load_state
from worker.runtime.parts import Parts

__all__ = ["Inside", "look_inside", "shown"]


_KNOWN_VERSION: Final = max(STATE_VERSION, ENTRY_VERSION, REQUEST_VERSION)
"""A row above it holds something of a newer build; claims leave it alone, and nobody here may act on half of it."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What could be read of a run's sealed side. `blocked` says why not everything could.

    Of a purged run nothing is there to be read, and `sources` is what its row carries in the clear.
    """

    state: SuspendedRunState | None = None
    request: AgentRunRequest | None = None
    blocked: BlockedReason | None = None
    sources: tuple[SourceRow, ...] = ()


async def look_inside(parts: Parts, row: RunRow) -> Inside:
    """Open a run as far as this process can. Total: what cannot be opened is told, never raised."""
    if row.purged:
        return Inside(sources=tuple(await parts.store.sources(row.uid)))
    if row.doc_version > _KNOWN_VERSION:
        return Inside(blocked=BlockedReason.VERSION)
    try:
        key = parts.sealer.unwrap(row.wrapped_key, row.key_id)
        state = await load_state(parts, row, key)
        if state is None or not state.run:
            return Inside(state=state, request=await load_request(parts, row, key))
        return Inside(state=state)
    except KeyUnavailableError:
        return Inside(blocked=BlockedReason.KEY)
    except SchemaTooNewError:
        return Inside(blocked=BlockedReason.VERSION)
    except (UnreadableError, SealingError):
        return Inside(blocked=BlockedReason.CORRUPT)


def shown(row: RunRow, inside: Inside, *, content: bool) -> Shown:
    """Build the show document. `content` = the reader may see texts; else they are None."""
    state = inside.state
    return Shown(
        uuid=row.uuid,
        status=row.status,
        termination_reason=row.reason,
        truncated=row.reason is not None and row.reason.truncated,
        configuration=row.configuration,
        origin=row.origin,
        started_by=row.owner,
        attempts=row.attempts,
        rounds=row.rounds,
        usage=ShownUsage(input_tokens=row.input_tokens, output_tokens=row.output_tokens),
        answer=_answer(row, state) if content else None,
        waiting=_waiting(row, state, content=content),
        blocked=_blocked(row, inside),
        forced=_forced(inside),
        carried=_in_the_clear(inside.sources) if state is None else tuple(_carried(c) for c in state.carried),
        dropped=() if state is None else tuple(_dropped(d) for d in state.dropped),
        lineage=_lineage(row),
        purged=row.purged,
    )


def _lineage(row: RunRow) -> ShownLineage | None:
    if row.lineage_run is None or row.origin not in (Origin.REQUEUE, Origin.FORK):
        return None
    return ShownLineage(from_=row.lineage_run, at=row.lineage_at or 0)


def _answer(row: RunRow, state: SuspendedRunState | None) -> str | None:
    if row.status is not RunStatus.COMPLETED or state is None or not state.transcript:
        return None
    last = state.transcript[-1]
    ended = row.reason is not None and row.reason.value in ("completed", "max_iterations")
    return last.content if last.role is Role.ASSISTANT and ended else ""


def _waiting(row: RunRow, state: SuspendedRunState | None, *, content: bool) -> ShownWaiting | None:
    if row.status not in (RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT) or row.question is None:
        return None
    question = None if state is None or state.question is None or state.question.id != row.question else state.question
    asked = None
    if question is not None and question.input is not None and content:
        asked = ShownInput(tool=question.input.tool, schema=_parsed(question.input.schema))
    calls = () if state is None or question is None else _calls(state, question.calls, content=content)
    return ShownWaiting(
        kind=row.question_kind or QuestionKind.APPROVAL,
        question=row.question,
        number=row.question_number or 0,
        calls=calls,
        input=asked,
        expires_at=row.expires_at,
        answered_by=row.answered_by,
    )


def _calls(state: SuspendedRunState, asked: Sequence[str], *, content: bool) -> tuple[ShownCall, ...]:
    # Only a registered tool's name is a name; what a model made up is content.
    known = {tool.name for tool in state.facts.tools}
    names = {c.id: c.name if content or c.name in known else "" for c in state.calls}
    return tuple(_call(c, names[c.id], asked=c.id in asked, content=content) for c in state.calls)


def _call(call: Call, name: str, *, asked: bool, content: bool) -> ShownCall:
    decision = None
    if call.denied:
        decision = "deny"
    elif call.decided:
        decision = "approve"
    preview = None
    if call.preview is not None and content:
        preview = ShownPreview(lines=call.preview.lines, failed=call.preview.failed)
    return ShownCall(
        id=call.id,
        name=name,
        arguments=_parsed(call.proposed if call.approved is None else call.approved) if content else None,
        effect=call.effect,
        gated=call.status is CallStatus.ASK,
        decision=decision,
        decided_by=call.decided_by,
        preview=preview,
        asked=asked,
        key=call.key,
    )


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except CodecError:
        return text


def _blocked(row: RunRow, inside: Inside) -> ShownBlocked | None:
    if row.blocked is not None and row.status is not RunStatus.RUNNING:  # someone tries it again
        return msgspec.json.decode(row.blocked, type=ShownBlocked)
    if inside.blocked is not None and row.status not in (
        RunStatus.COMPLETED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    ):
        return ShownBlocked(reason=inside.blocked, configuration=row.configuration)
    return None


def _forced(inside: Inside) -> ShownForced:
    if inside.state is not None and inside.state.run:
        return ShownForced(snippets=inside.state.forced_snippet_uids, skills=inside.state.forced_skill_uids)
    augmentation = None if inside.request is None else inside.request.augmentation
    if augmentation is None:
        return ShownForced(snippets=(), skills=())
    return ShownForced(
        snippets=tuple(int(u) for u in augmentation.forced_snippet_uids),
        skills=tuple(int(u) for u in augmentation.forced_skill_uids),
    )


def _carried(carried: CarriedSource) -> ShownCarried:
    return ShownCarried(kind=carried.kind, uid=carried.uid, origin=carried.origin)


def _in_the_clear(sources: tuple[SourceRow, ...]) -> tuple[ShownCarried, ...]:
    try:
        return tuple(ShownCarried(kind=SourceKind(s.kind), uid=s.uid, origin=SourceOrigin(s.origin)) for s in sources)
    except ValueError:
        return ()  # changed in the database


def _dropped(dropped: DroppedSource) -> ShownDropped:
    return ShownDropped(kind=dropped.kind, uid=dropped.uid, reason=dropped.reason, when=dropped.when)
