"""What the machine asks its driver to do. Commands hold no content: the driver reads that from the state.

A send can only be expressed as a `CallModel`, and a `CallModel` cannot be built without a `Permit`, which carries the
gate's decision and the resolved target. Only `worker.core.gate` builds permits.
"""

from __future__ import annotations

from typing import Any

import msgspec

from codec.decisions import Decision
from codec.ids import Uid
from codec.vocabulary import BlockedReason, QuestionKind, TerminationReason, ToolEffect, TrustZone, Verdict

__all__ = [
    "CallModel",
    "CallTool",
    "Command",
    "Finish",
    "Permit",
    "Preview",
    "Suspend",
    "Target",
]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one place to send to. `key_variable` names an environment variable; keys are never stored."""

    provider: Uid
    identifier: str
    kind: str
    configuration: str
    model: str
    zone: TrustZone
    version: int
    base_url: str | None = None
    key_variable: str | None = None
    script: str | None = None
    max_concurrency: int = 0
    requests_per_minute: int = 0


class Permit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate's word that the carried sources may reach this target under this policy.

    Errors: `ValueError` when built from a refusal, or when decision and target stand under different policies.
    """

    decision: Decision
    target: Target

    def __post_init__(self) -> None:
        """Refuse what is no permission."""
        if self.decision.verdict is Verdict.REFUSED or not self.decision.readable:
            raise ValueError("a refusal is no permit")
        if self.decision.policy != self.target.version:
            raise ValueError("decision and target are of different policies")


class CallModel(msgspec.Struct, frozen=True, kw_only=True, tag="call_model", forbid_unknown_fields=True):
    """Send the transcript's messages to the permit's target.

    Shape: `length` messages of the transcript, `offered` tools by name; `request_hash` is over the redacted messages,
    tools and options as sent, so that replay compares what left. `hop` 0 = the configuration's own provider.
    """

    send: str
    permit: Permit
    round: int
    hop: int
    length: int
    offered: tuple[str, ...]
    request_hash: str
    key: str

    def __post_init__(self) -> None:
        """Refuse a send without a permit, whatever a caller's type checker says."""
        permit: Any = self.permit
        if not isinstance(permit, Permit):
            raise TypeError("a send needs a permit")


class CallTool(msgspec.Struct, frozen=True, kw_only=True, tag="call_tool", forbid_unknown_fields=True):
    """Execute one call. `key` is the same at every repetition; `decision` judged its egress, None without one.

    Units: `timeout_ms` in milliseconds.
    """

    call: str
    tool: str
    effect: ToolEffect
    key: str
    timeout_ms: int
    decision: Decision | None = None

    def __post_init__(self) -> None:
        """Refuse a call whose egress was refused."""
        if self.decision is not None and self.decision.verdict is Verdict.REFUSED:
            raise ValueError("a refusal is no permit")


class Preview(msgspec.Struct, frozen=True, kw_only=True, tag="preview", forbid_unknown_fields=True):
    """Ask a tool what the call would do, in words for a person."""

    call: str
    tool: str


class Suspend(msgspec.Struct, frozen=True, kw_only=True, tag="suspend", forbid_unknown_fields=True):
    """Store the state and free the worker.

    Shape: a question waits for a person; `blocked` says that its answer could not be acted on; `parked` (without a
    question) is the number of the retry to wait for. Units: `ttl_s` seconds until a new question expires, 0 = never;
    a question that was open already keeps its time. `not_before_ms` milliseconds that a provider asked us to wait.
    """

    kind: QuestionKind | None = None
    question: str | None = None
    number: int | None = None
    blocked: BlockedReason | None = None
    parked: int | None = None
    ttl_s: int = 0
    not_before_ms: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish", forbid_unknown_fields=True):
    """The run is over."""

    reason: TerminationReason


Command = CallModel | CallTool | Preview | Suspend | Finish
