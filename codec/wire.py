"""Documents for people and programs outside: what `show`, `explain`, `events` and a dry run print.

Field names are a stable contract; fields are added, never renamed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from codec.vocabulary import (
    BlockedReason,
    DeclaredClass,
    DroppedWhen,
    DropReason,
    Enforcement,
    Origin,
    QuestionKind,
    RunStatus,
    SourceKind,
    SourceOrigin,
    TerminationReason,
    ToolEffect,
    TrustZone,
    Verdict,
)

__all__ = [
    "DryRun",
    "Explained",
    "ExplainedSource",
    "Shown",
    "ShownBlocked",
    "ShownCall",
    "ShownCarried",
    "ShownDropped",
    "ShownForced",
    "ShownInput",
    "ShownLineage",
    "ShownPreview",
    "ShownUsage",
    "ShownWaiting",
]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """Common shape: every field is always there."""


class ShownUsage(_Document, frozen=True, kw_only=True):
    """Tokens over all segments."""

    input_tokens: int
    output_tokens: int


class ShownPreview(_Document, frozen=True, kw_only=True):
    """What a call would do, in lines for a person."""

    lines: tuple[str, ...]
    failed: bool


class ShownCall(_Document, frozen=True, kw_only=True):
    """A call of the open turn. `arguments` is an object, raw text when it is none, None when not to be read.

    Shape: `asked` = the open question is about it; `key` is what its tool was or will be given, the same at every
    repetition.
    """

    id: str
    name: str
    arguments: Any
    effect: ToolEffect
    gated: bool
    decision: str | None
    decided_by: str | None
    preview: ShownPreview | None
    asked: bool
    key: str


class ShownInput(_Document, frozen=True, kw_only=True):
    """What must be supplied."""

    tool: str
    schema: Any


class ShownWaiting(_Document, frozen=True, kw_only=True):
    """The open question."""

    kind: QuestionKind
    question: str
    number: int
    calls: tuple[ShownCall, ...]
    input: ShownInput | None
    expires_at: float | None
    answered_by: str | None


class ShownBlocked(_Document, frozen=True, kw_only=True):
    """Why an answered question could not be acted on."""

    reason: BlockedReason
    source: str | None = None
    data_class: DeclaredClass | None = None
    zone: TrustZone | None = None
    ceiling: DeclaredClass | None = None
    provider: str | None = None
    configuration: str | None = None


class ShownForced(_Document, frozen=True, kw_only=True):
    """The forced uids exactly as the run was given them."""

    snippets: tuple[int, ...]
    skills: tuple[int, ...]


class ShownCarried(_Document, frozen=True, kw_only=True):
    """A source whose text is in the transcript."""

    kind: SourceKind
    uid: int
    origin: SourceOrigin


class ShownDropped(_Document, frozen=True, kw_only=True):
    """A source that does not count."""

    kind: SourceKind
    uid: int
    reason: DropReason
    when: DroppedWhen


class ShownLineage(_Document, frozen=True, kw_only=True):
    """Where a requeued or forked run came from."""

    from_: str = msgspec.field(name="from")
    at: int


class Shown(_Document, frozen=True, kw_only=True):
    """One run as `show` prints it. `purged` = its texts were destroyed; what is known without them is still told."""

    uuid: str
    status: RunStatus
    termination_reason: TerminationReason | None
    truncated: bool
    configuration: str
    origin: Origin
    started_by: str
    attempts: int
    rounds: int
    usage: ShownUsage
    answer: str | None
    waiting: ShownWaiting | None
    blocked: ShownBlocked | None
    forced: ShownForced
    carried: tuple[ShownCarried, ...]
    dropped: tuple[ShownDropped, ...]
    lineage: ShownLineage | None
    purged: bool = False


class ExplainedSource(_Document, frozen=True, kw_only=True):
    """A source as explained. `counts` False = it is left out (deactivated or gone)."""

    kind: SourceKind
    uid: int
    name: str
    data_class: DeclaredClass | None
    origin: SourceOrigin
    counts: bool


class Explained(_Document, frozen=True, kw_only=True):
    """What the gate would say now, without asking anybody and without an audit row."""

    sources: tuple[ExplainedSource, ...]
    data_class: DeclaredClass | None
    source: str | None
    zone: TrustZone | None
    provider: str | None
    ceiling: DeclaredClass | None
    mode: Enforcement
    verdict: Verdict
    fix: tuple[str, ...]


class DryRun(_Document, frozen=True, kw_only=True):
    """The messages and tools that a run would send first, and the explanation. Nothing was sent."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[str, ...]
    explain: Explained
