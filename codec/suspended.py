"""The run's state: the machine's own state and, sealed, the snapshot of a suspended run. One struct for both.

It carries the uids of the forced sources exactly as the run was given them, independent of the queued request, and
the list of sources whose text is in the transcript.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from codec.actor import Actor
from codec.decisions import Decision
from codec.documents import decode_document, encode_document
from codec.errors import CodecError
from codec.facts import Facts
from codec.ids import Nonce, Uid
from codec.request import ModelOptions
from codec.transcript import Message
from codec.version0 import upgrade_state
from codec.vocabulary import (
    BlockedReason,
    CallStatus,
    DeclaredClass,
    DroppedWhen,
    DropReason,
    Phase,
    QuestionKind,
    SourceKind,
    SourceOrigin,
    TerminationReason,
    ToolEffect,
)

__all__ = [
    "STATE_VERSION",
    "Blocked",
    "Call",
    "CallPreview",
    "CarriedSource",
    "Counters",
    "DroppedSource",
    "InputRequest",
    "Limits",
    "OpenSend",
    "Question",
    "SuspendedRunState",
]

STATE_VERSION: Final = 1
"""1: first released form. 0: documents from before forced lists, carried sources, input keys and previews."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common shape of the parts of a state; nothing has a default that could widen what a run may do."""


class CarriedSource(_Part, frozen=True, kw_only=True):
    """A source whose text is in the transcript. `seen` is its class then, `text_hash` the keyed hash of its text."""

    kind: SourceKind
    uid: Uid
    name: str
    origin: SourceOrigin
    seen: DeclaredClass | None
    text_hash: str


class DroppedSource(_Part, frozen=True, kw_only=True):
    """A source that does not count, and when that was noticed."""

    kind: SourceKind
    uid: Uid
    reason: DropReason
    when: DroppedWhen


class CallPreview(_Part, frozen=True, kw_only=True):
    """What a call would do, for a person: at most 20 lines of 500 characters and one that counts the rest."""

    lines: tuple[str, ...]
    failed: bool


class Call(_Part, frozen=True, kw_only=True):
    """One tool call of the open turn.

    Shape: `proposed` is the model's text, `approved` a person's edit of it, `executed` what ran last; `result` is set
    when done. `effect` is the strictest ever seen for it. `decided` is True once a person released or denied it.
    """

    id: str
    name: str
    proposed: str
    status: CallStatus
    effect: ToolEffect
    key: str
    gated: bool
    data_class: DeclaredClass
    approved: str | None = None
    supplied: str | None = None
    executed: str | None = None
    result: str | None = None
    error: bool = False
    decided: bool = False
    denied: bool = False
    decided_by: str | None = None
    reason: str | None = None
    preview: CallPreview | None = None


class InputRequest(_Part, frozen=True, kw_only=True):
    """What a person must supply: the tool that needs it and the JSON Schema of the data, as text."""

    tool: str
    schema: str


class Question(_Part, frozen=True, kw_only=True):
    """What a waiting run asks. Immutable while the run waits; `id` is random and names what was shown."""

    number: Annotated[int, msgspec.Meta(gt=0)]
    id: Nonce
    kind: QuestionKind
    calls: tuple[str, ...]
    input: InputRequest | None


class OpenSend(_Part, frozen=True, kw_only=True):
    """A send without an answer yet. Units: `estimate` in estimated tokens, for the calibration."""

    id: str
    estimate: _Count


class Blocked(_Part, frozen=True, kw_only=True):
    """Why an answered question could not be acted on; `decision` is the gate's, when the gate refused."""

    reason: BlockedReason
    decision: Decision | None


class Counters(_Part, frozen=True, kw_only=True):
    """What was used, over all segments. `barren` counts segments in a row that added nothing but their
    start, `overdue` permits in a row that were not performed in time.
    """

    rounds: _Count
    input_tokens: _Count
    output_tokens: _Count
    remote_calls: _Count
    elapsed_ms: _Count
    turns: _Count
    questions: _Count
    barren: _Count
    overdue: _Count


class Limits(_Part, frozen=True, kw_only=True):
    """The run's own limits, fixed when it was composed; 0 = none for tokens and time."""

    rounds: Annotated[int, msgspec.Meta(gt=0, le=200)]
    tokens: _Count
    duration_ms: _Count
    remote_calls: _Count
    retries: _Count


class SuspendedRunState(_Part, frozen=True, kw_only=True):
    """Everything the machine knows of a run.

    Law: `decode(encode(s)) == s`, and a step from the decoded state equals a step from the state.
    """

    version: int
    run: str
    phase: Phase
    seed: Nonce
    owner: Actor
    configuration: _Count
    allowed_tool_names: tuple[str, ...] | None
    options: ModelOptions
    forced_snippet_uids: tuple[Uid, ...]
    forced_skill_uids: tuple[Uid, ...]
    transcript: tuple[Message, ...]
    lead: _Count
    carried: tuple[CarriedSource, ...]
    dropped: tuple[DroppedSource, ...]
    calls: tuple[Call, ...]
    counters: Counters
    limits: Limits
    send: OpenSend | None
    hop: _Count
    retries: _Count
    synthesis: bool
    calibration: float
    question: Question | None
    blocked: Blocked | None
    reason: TerminationReason | None
    high_water: DeclaredClass | None
    noted: tuple[str, ...]
    facts: Facts
    policy: int

    def encode(self) -> bytes:
        """Write the state as plain JSON with an integer `version`; compression and sealing are the store's."""
        return encode_document(self)

    @classmethod
    def decode(cls, data: bytes) -> SuspendedRunState:
        """Read a state of any released version.

        Errors: `CodecError` with the path: a current document that is malformed is corruption and never widens
        anything. `SchemaTooNewError` for a newer one.
        """
        state = decode_document(data, cls, "state", STATE_VERSION, _UPGRADES, complete=_check_calls)
        _check(state)
        return state


def _check_calls(fields: dict[str, Any]) -> None:
    # A call is built in stages and so has defaults; a stored one that lost its `approved` edit would run as proposed.
    calls = fields.get("calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        missing = [name for name in Call.__struct_fields__ if isinstance(call, dict) and name not in call]
        if missing:
            raise CodecError("state", f"$.calls[{index}].{missing[0]}", "a field is missing")


_UPGRADES: Final[dict[int, Any]] = {0: upgrade_state}


def _check(state: SuspendedRunState) -> None:
    if (state.phase is Phase.WAITING) != (state.question is not None):
        raise CodecError("state", "$.question", "does not fit the phase")
    if (state.phase is Phase.DONE) != (state.reason is not None):
        raise CodecError("state", "$.reason", "does not fit the phase")
    if (state.phase is Phase.MODEL) != (state.send is not None):
        raise CodecError("state", "$.send", "does not fit the phase")
    if state.blocked is not None and state.phase is not Phase.WAITING:
        raise CodecError("state", "$.blocked", "does not fit the phase")
    known = {call.id for call in state.calls}
    if len(known) != len(state.calls):
        raise CodecError("state", "$.calls", "a repeated id")
    if state.question is not None and not known.issuperset(state.question.calls):
        raise CodecError("state", "$.question.calls", "names an unknown call")
    if state.lead > len(state.transcript):
        raise CodecError("state", "$.lead", "longer than the transcript")
