"""From steps to what is stored: sealed entries in a hash chain, and the row, exposures and audit that go with them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from codec.commands import Suspend
from codec.events import CancelRequested, DecisionGiven, Event, InputGiven, OutcomeGiven, RunStarted
from codec.journal import ENTRY_VERSION, Entry, reference
from codec.suspended import STATE_VERSION, SuspendedRunState
from codec.vocabulary import STATUS_OF, Phase, QuestionKind, ResumeCause, RunStatus
from worker.core.chain import link
from worker.core.people import reading_class
from worker.ports.records import Append, Document, Due, EntryRow, SourceRow
from worker.ports.sealing import Sealer
from worker.runtime.hold import Hold
from worker.runtime.metadata import Stepped, decision_meta, meta_of
from worker.runtime.traces import audits_of, exposures_of, source_rows

__all__ = ["append_of", "blocked_meta", "entry_link", "entry_place", "entry_row", "state_place"]


def append_of(
    hold: Hold, sealer: Sealer, steps: Sequence[Stepped], *, retry_s: Sequence[float], release: bool = False
) -> Append:
    """Build the one transaction of these steps.

    Shape: `release` gives the run up although it works (a drain); nothing of the last step was performed then, so no
    exposure is written for it.
    """
    state = steps[-1].result.state
    head, rows = hold.head, []
    for offset, stepped in enumerate(steps, start=1):
        row = _entry(hold, sealer, stepped, hold.seq + offset, head)
        head = entry_link(hold.row.uuid, hold.token, row)
        rows.append(row)
    append = Append(
        run_uid=hold.row.uid,
        token=hold.token,
        first=hold.seq + 1,
        entries=tuple(rows),
        head=head,
        policy=None if _closes(steps) else state.policy,
        status=_status(state),
        due=Due.LEASE,
        closing=_closes(steps),
        rounds=state.counters.rounds,
        input_tokens=state.counters.input_tokens,
        output_tokens=state.counters.output_tokens,
        high_water=reading_class(state),
        sources=_new_sources(steps),
        exposures=exposures_of(hold, steps, sent=not release),
        audits=audits_of(hold, steps),
        folded=_folded(steps),
        folded_seq=_folded_seq(hold, steps),
        doc_version=max(STATE_VERSION, ENTRY_VERSION),
        in_vain=state.counters.barren,
    )
    return _rested(append, hold, sealer, state, steps, retry_s, release=release)


def entry_link(run: str, token: str, row: EntryRow) -> bytes:
    """Give the chain's value after a row."""
    return link(
        row.prev,
        run=run,
        seq=row.seq,
        kind=row.kind,
        segment=row.segment,
        token=token,
        policy=row.policy,
        meta=row.meta,
        payload=row.payload,
    )


def entry_row(kind: str, *, seq: int, segment: int, policy: int, prev: bytes, by: str) -> EntryRow:
    """Build the unsealed row of a cancel or a corruption: written by somebody who may hold no key."""
    meta = msgspec.json.encode({"by": by, "final": "cancelled" if kind == "cancel_requested" else "corrupt"}).decode()
    return EntryRow(seq=seq, kind=kind, segment=segment, policy=policy, prev=prev, meta=meta, payload=b"")


def _entry(hold: Hold, sealer: Sealer, stepped: Stepped, seq: int, prev: bytes) -> EntryRow:
    event, result = stepped.event, stepped.result
    entry = Entry(
        version=ENTRY_VERSION,
        event=event,
        commands=tuple(reference(command) for command in result.commands),
        decisions=result.decisions,
        denials=result.denials,
        stale=result.stale,
    )
    row = EntryRow(
        seq=seq,
        kind=_tag(event),
        segment=hold.row.segment,
        policy=event.policy,
        prev=prev,
        meta=msgspec.json.encode(meta_of(stepped)).decode(),
        payload=b"",
    )
    return replace(row, payload=sealer.seal(hold.key, "entry", hold.row.uuid, entry_place(row), entry.encode()))


def entry_place(row: EntryRow) -> str:
    """Give the place that an entry is sealed for: its sequence, its clear columns, and everything before it.

    The chain alone has no key: whoever may write the database could compute it anew after changing a column.
    """
    clear = entry_link("", "", replace(row, payload=b""))
    return f"{row.seq}:{clear.hex()}"


def state_place(kind: str, seq: int) -> str:
    """Give the place that a snapshot is sealed for: an older one cannot stand in for a newer one."""
    return f"{kind}:{seq}"


def _tag(event: Event) -> str:
    # The clear kind is the tag inside the sealed payload, so the two cannot drift.
    return str(type(event).__struct_config__.tag)


def _status(state: SuspendedRunState) -> RunStatus:
    if state.phase is Phase.DONE and state.reason is not None:
        return STATUS_OF[state.reason]
    if state.phase is Phase.WAITING and state.question is not None:
        asked = state.question.kind is QuestionKind.INPUT
        return RunStatus.WAITING_FOR_INPUT if asked else RunStatus.WAITING_FOR_APPROVAL
    return RunStatus.QUEUED if state.phase is Phase.PARKED else RunStatus.RUNNING


def _new_sources(steps: Sequence[Stepped]) -> tuple[SourceRow, ...]:
    return next((source_rows(s.result.state) for s in steps if isinstance(s.event, RunStarted)), ())


def _closes(steps: Sequence[Stepped]) -> bool:
    """Whether these steps may land on a cancelled run: its closing entry, and late results after it."""
    ended = steps[-1].result.state.phase is Phase.DONE  # what is stale in a run that goes on closes nothing
    return ended and all(s.result.stale or isinstance(s.event, CancelRequested) or _came_after_end(s) for s in steps)


def _came_after_end(stepped: Stepped) -> bool:
    return stepped.before is not None and stepped.before.phase is Phase.DONE


def _rested(
    append: Append,
    hold: Hold,
    sealer: Sealer,
    state: SuspendedRunState,
    steps: Sequence[Stepped],
    retry_s: Sequence[float],
    *,
    release: bool,
) -> Append:
    if state.phase is Phase.DONE:
        return replace(append, due=Due.NEVER, release=True, reason=state.reason)
    if state.phase in (Phase.MODEL, Phase.TOOLS) and not release:
        return append
    seq = append.first + len(append.entries) - 1
    sealed = sealer.seal(hold.key, "state", hold.row.uuid, state_place("state", seq), state.encode())
    document = Document(kind="state", version=STATE_VERSION, seq=seq, payload=sealed)
    append = replace(append, documents=(document,), release=True)
    if state.phase is Phase.WAITING:
        return _waiting(append, hold, state, steps)
    if state.phase is Phase.PARKED:
        return replace(append, due=Due.DELAY, delay_s=_delay(state, steps, retry_s), cause=ResumeCause.RETRY)
    return replace(append, status=RunStatus.QUEUED, due=Due.NOW, cause=ResumeCause.DRAIN, counts=False)


def _waiting(append: Append, hold: Hold, state: SuspendedRunState, steps: Sequence[Stepped]) -> Append:
    question = state.question
    if question is None:  # pragma: no cover - phase and question go together
        raise AssertionError("waiting without a question")
    same = question.id == hold.row.question
    ttl = next((c.ttl_s for s in reversed(steps) for c in s.result.commands if isinstance(c, Suspend)), 0)
    return replace(
        append,
        due=Due.EXPIRY,
        question=question.id,
        question_kind=question.kind,
        question_number=question.number,
        keep_expiry=same,
        expires_in_s=None if same or ttl == 0 else float(ttl),
        blocked=blocked_meta(state),
    )


def blocked_meta(state: SuspendedRunState) -> str | None:
    """Give the row's content-free word on why a run is blocked."""
    if state.blocked is None:
        return None
    decision = state.blocked.decision
    fields = {"reason": state.blocked.reason, "configuration": _configuration(state)}
    if decision is not None:
        fields.update({k: v for k, v in decision_meta(decision).items() if k not in ("verdict", "mode")})
    return msgspec.json.encode(fields).decode()


def _configuration(state: SuspendedRunState) -> str | None:
    return None if state.facts.configuration is None else state.facts.configuration.identifier


def _delay(state: SuspendedRunState, steps: Sequence[Stepped], retry_s: Sequence[float]) -> float:
    asked = max((c.not_before_ms for s in steps for c in s.result.commands if isinstance(c, Suspend)), default=0)
    planned = retry_s[min(state.retries, len(retry_s)) - 1] if retry_s and state.retries else 0.0
    return max(planned, asked / 1000)


def _folded(steps: Sequence[Stepped]) -> str | None:
    return next(
        (s.event.question for s in steps if isinstance(s.event, DecisionGiven | InputGiven | OutcomeGiven)), None
    )


def _folded_seq(hold: Hold, steps: Sequence[Stepped]) -> int | None:
    for offset, stepped in enumerate(steps, start=1):
        if isinstance(stepped.event, DecisionGiven | InputGiven | OutcomeGiven):
            return hold.seq + offset
    return None
