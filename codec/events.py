"""What the machine is told. Events are the only carriers of content in the journal.

Every event carries a nonce and the run's executing time, both made by the driver, and the version of the catalogue
that its facts (or the facts before it) come from. The core makes none of these.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from codec.actor import LiveActor
from codec.facts import Facts, Texts
from codec.ids import Nonce
from codec.request import AgentRunRequest
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass, ResumeCause

__all__ = [
    "CallVerdict",
    "CancelRequested",
    "DecisionGiven",
    "Event",
    "Expired",
    "InputGiven",
    "ModelFailed",
    "ModelReplied",
    "OutcomeGiven",
    "PolicyReplaced",
    "Previewed",
    "RunResumed",
    "RunStarted",
    "StateCorrupted",
    "ToolFailed",
    "ToolReturned",
]


class _Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Units: `elapsed_ms` is the executing time of the whole run, all segments; `policy` a catalogue version."""

    nonce: Nonce
    elapsed_ms: Annotated[int, msgspec.Meta(ge=0)]
    policy: int


class RunStarted(_Event, frozen=True, kw_only=True, tag="run_started"):
    """The first event: the request is composed under these facts with these texts.

    Shape: `retries` is how often a failed send is parked before the run gives up. The nonce of this event is the run's
    own secret: keys of sends and calls derive from it.
    """

    run: str
    request: AgentRunRequest
    texts: Texts
    facts: Facts
    retries: int = 3


class RunResumed(_Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A segment of a started run begins. `facts` None = the same as last recorded."""

    cause: ResumeCause
    facts: Facts | None = None


class PolicyReplaced(_Event, frozen=True, kw_only=True, tag="policy_replaced"):
    """The catalogue moved under a running segment and this run's facts changed with it."""

    facts: Facts


class ModelReplied(_Event, frozen=True, kw_only=True, tag="model_replied"):
    """A whole answer to the open send."""

    send: str
    reply: ModelReply


class ModelFailed(_Event, frozen=True, kw_only=True, tag="model_failed"):
    """The open send failed. Units: `not_before_ms` is what a Retry-After asked for."""

    send: str
    failure: FailureClass
    not_before_ms: int = 0


class ToolReturned(_Event, frozen=True, kw_only=True, tag="tool_returned"):
    """An open call returned; `result` is already bounded and clean."""

    call: str
    result: str


class ToolFailed(_Event, frozen=True, kw_only=True, tag="tool_failed"):
    """An open call failed. `not_executed` in the class says that the world is as before."""

    call: str
    failure: FailureClass


class Previewed(_Event, frozen=True, kw_only=True, tag="previewed"):
    """A preview is there, or failed: then `lines` says so in one line."""

    call: str
    lines: tuple[str, ...]
    failed: bool = False


class CallVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One call's verdict. `arguments` is the edited JSON text that was approved in place of the proposed one."""

    approve: bool
    reason: str | None = None
    arguments: str | None = None


class DecisionGiven(_Event, frozen=True, kw_only=True, tag="decision_given"):
    """The answer to an approval question, covering every gated call."""

    question: str
    decider: LiveActor
    verdicts: dict[str, CallVerdict]


class InputGiven(_Event, frozen=True, kw_only=True, tag="input_given"):
    """The answer to an input question; `data` is a JSON object as text, already valid against the schema."""

    question: str
    decider: LiveActor
    data: str


class OutcomeGiven(_Event, frozen=True, kw_only=True, tag="outcome_given"):
    """A person says what became of a call: it happened with this result, it did not (run it), or stop."""

    question: str
    decider: LiveActor
    call: str
    happened: str | None = None
    run: bool = False


class CancelRequested(_Event, frozen=True, kw_only=True, tag="cancel_requested"):
    """Somebody with the right to do so wants the run to end."""

    by: str


class Expired(_Event, frozen=True, kw_only=True, tag="expired"):
    """The open question's time ran out, by the database's clock."""


class StateCorrupted(_Event, frozen=True, kw_only=True, tag="state_corrupted"):
    """What is stored of this run can no longer be read, and nobody waits for it."""


Event = (
    RunStarted
    | RunResumed
    | PolicyReplaced
    | ModelReplied
    | ModelFailed
    | ToolReturned
    | ToolFailed
    | Previewed
    | DecisionGiven
    | InputGiven
    | OutcomeGiven
    | CancelRequested
    | Expired
    | StateCorrupted
)
