"""Rows as the run store takes and gives them. Plain data: no payload in here is readable, no field holds content."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from codec.vocabulary import FINAL_STATUSES, ExposureState, Origin, QuestionKind, RunStatus, TerminationReason

__all__ = [
    "Append",
    "AuditRow",
    "Claimed",
    "Commit",
    "CommitStatus",
    "Document",
    "Due",
    "EntryRow",
    "ExposureWrite",
    "InboxRow",
    "NewRun",
    "Renewal",
    "RunFilter",
    "RunRow",
    "SourceRow",
    "Stored",
    "StoredAnswer",
]


class Due(StrEnum):
    """When somebody may act on the run next."""

    LEASE = "lease"  # it stays with its segment: due when the lease ends
    NOW = "now"
    DELAY = "delay"  # after `Append.delay_s`
    EXPIRY = "expiry"  # when its question expires; never, when that is never
    NEVER = "never"


class CommitStatus(StrEnum):
    """What became of an append."""

    COMMITTED = "committed"
    LOST = "lost"  # the token or the sequence no longer holds: another segment owns the run
    CANCELLED = "cancelled"  # somebody cancelled the run; nothing was written, only a closing append may follow
    POLICY_MOVED = "policy_moved"  # the catalogue's version is another; nothing was written


class EntryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One journal row. `meta` is JSON without content; `prev` is the chain's value before this entry.

    `at` and `token` are filled when read.
    """

    seq: int
    kind: str
    segment: int
    policy: int
    prev: bytes
    meta: str
    payload: bytes
    at: float = 0.0
    token: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed document of a run: kind `request`, `state` (the last snapshot) or `base` (where a requeued run began).

    `seq` is the last journal entry that a snapshot includes.
    """

    kind: str
    version: int
    seq: int
    payload: bytes


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A carried source, in the clear for inbox verdicts and impact."""

    kind: str
    uid: int
    name: str
    origin: str
    seen: str | None
    text_hash: str


class ExposureWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Source text and a provider: upserted by (run, kind, uid, data_class, provider, model, zone).

    `sends` and `failures` are added; what becomes of an earlier send adds no send. `state` is what this write alone
    says. Of all together: answered if one ever was; failed if every send failed; else possible.
    """

    kind: str
    uid: int
    identifier: str
    origin: str
    data_class: str | None
    provider_uid: int
    provider: str
    model: str
    zone: str
    mode: str
    state: ExposureState
    sends: int
    failures: int = 0


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the audit; every field is a name, a class or a stable word."""

    decision: str
    actor: str
    via: str
    run: str | None = None
    mode: str | None = None
    source: str | None = None
    data_class: str | None = None
    zone: str | None = None
    ceiling: str | None = None
    provider: str | None = None
    configuration: str | None = None
    tool: str | None = None
    detail: str | None = None
    at: float = 0.0


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one run, committed whole or not at all.

    Shape: `entries` continue at `first` without a gap; guarded by (run_uid, token, seq = first - 1). `policy` None =
    needs no version check. `closing` = may also land on a cancelled run whose token is still this one, which keeps the
    status cancelled. `release` gives up token and lease. `question*` replace the row's question. `folded` is the
    question whose inbox row is consumed by entry `folded_seq`. `expires_in_s` None keeps the stored expiry while the
    question stays the same (`keep_expiry`), else there is none. `blocked` is JSON without content. `counts` False =
    this segment was no attempt (drain). `rounds` and tokens are the run's totals. `doc_version` raises the row's, so
    that an older build no longer claims what a newer one wrote; 0 leaves it, as None leaves `high_water`. `in_vain` =
    claims since the run came further, 0 when this step does.
    """

    run_uid: int
    token: str
    first: int
    entries: tuple[EntryRow, ...]
    head: bytes
    policy: int | None
    status: RunStatus
    due: Due
    delay_s: float = 0.0
    release: bool = False
    closing: bool = False
    counts: bool = True
    cause: str | None = None
    question: str | None = None
    question_kind: QuestionKind | None = None
    question_number: int | None = None
    expires_in_s: float | None = None
    keep_expiry: bool = False
    blocked: str | None = None
    reason: TerminationReason | None = None
    rounds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    high_water: str | None = None
    documents: tuple[Document, ...] = ()
    sources: tuple[SourceRow, ...] = ()
    exposures: tuple[ExposureWrite, ...] = ()
    audits: tuple[AuditRow, ...] = ()
    folded: str | None = None
    folded_seq: int | None = None
    doc_version: int = 0
    in_vain: int = 0

    @property
    def size(self) -> int:
        """Bytes of payload, for cutting batches."""
        return sum(len(e.payload) for e in self.entries) + sum(len(d.payload) for d in self.documents)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an append; `policy` is the version that was found when it was POLICY_MOVED.

    Units: `at` is the monotonic clock of this process, in seconds, just before the transaction read the version: no
    permit of this step is older than that.
    """

    status: CommitStatus
    policy: int | None = None
    at: float = 0.0


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run's first row. With `idempotency` (keyed hash of the key) a second one of the same owner is not written.

    `body` is a keyed hash of what was asked. `claim` = the row is written as running under this token and holder, for a
    synchronous run; else it is queued and due now.
    """

    uuid: str
    owner: str
    origin: Origin
    configuration_uid: int
    configuration: str
    wrapped_key: bytes
    key_id: str
    doc_version: int
    documents: tuple[Document, ...]
    cause: str
    head: bytes
    idempotency: str | None = None
    body: str | None = None
    lineage_run: str | None = None
    lineage_at: int | None = None
    claim_token: str | None = None
    claim_holder: str | None = None
    lease_s: float = 0.0
    sources: tuple[SourceRow, ...] = ()
    audits: tuple[AuditRow, ...] = ()


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The hot row as read. Content-free.

    Units: `attempts` counts claims that were not given back, `in_vain` those of them since the run came further.
    """

    uid: int
    uuid: str
    status: RunStatus
    seq: int
    head: bytes
    owner: str
    origin: Origin
    configuration_uid: int
    configuration: str
    wrapped_key: bytes
    key_id: str
    doc_version: int
    segment: int
    attempts: int
    in_vain: int
    created_at: float
    updated_at: float
    token: str | None = None
    holder: str | None = None
    due_at: float | None = None
    cause: str | None = None
    question: str | None = None
    question_kind: QuestionKind | None = None
    question_number: int | None = None
    expires_at: float | None = None
    answered_by: str | None = None
    blocked: str | None = None
    reason: TerminationReason | None = None
    rounds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    high_water: str | None = None
    body: str | None = None
    lineage_run: str | None = None
    lineage_at: int | None = None
    finished_at: float | None = None

    @property
    def purged(self) -> bool:
        """Whether its key was destroyed, and with it everything that it said. A run that goes on always has one."""
        return not self.wrapped_key and self.status in FINAL_STATUSES


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that this process now holds. `was` is the status before; `expired` says its open question ran out."""

    row: RunRow
    token: str
    was: RunStatus
    expired: bool


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a heartbeat for one run."""

    run_uid: int
    held: bool
    cancelled: bool


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that waits for the next segment, sealed."""

    question: str
    kind: str
    decided_by: str
    via: str
    payload: bytes
    consumed_seq: int | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What a run stands on, all of one moment: its documents, the entries after the newest snapshot, and the answer to
    its open question that no entry consumed yet. The request is among the documents as long as there is no entry.
    """

    documents: tuple[Document, ...]
    entries: tuple[EntryRow, ...]
    answer: InboxRow | None

    def document(self, kind: str) -> Document | None:
        """Give the document of a kind."""
        return next((document for document in self.documents if document.kind == kind), None)


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an answer was stored. `problem` is None when it was, else not_waiting, stale, expired or answered."""

    problem: str | None = None
    decided_by: str | None = None


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What to list: newest first. `limit` None = all. `dead` = failed runs that a person may requeue;
    `lineage_run` = those that continue this one."""

    statuses: tuple[RunStatus, ...] = ()
    since: float | None = None
    owner: str | None = None
    limit: int | None = None
    dead: bool = False
    lineage_run: str | None = None
