"""The closed sets of words that are stored. Values are added, never renamed and never re-ordered by accident.

The order of `DeclaredClass` and `TrustZone` is their rank; `worker.core.zones` is the only place that compares them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = [
    "FINAL_STATUSES",
    "STATUS_OF",
    "WAITING_STATUSES",
    "ActorKind",
    "BlockedReason",
    "CallStatus",
    "DeclaredClass",
    "DropReason",
    "DroppedWhen",
    "Enforcement",
    "ExposureState",
    "FailureClass",
    "FinishReason",
    "Origin",
    "Phase",
    "QuestionKind",
    "ResumeCause",
    "Role",
    "RunStatus",
    "SourceKind",
    "SourceOrigin",
    "TerminationReason",
    "ToolEffect",
    "TrustZone",
    "Verdict",
]


class DeclaredClass(StrEnum):
    """A data class as declared on a source or a tool, ascending.

    `unreadable` is no class that anybody can declare: it stands for a stored value that is none of the six, and it
    folds above everything, so that no zone permits it.
    """

    PUBLIC_CONTENT = "public_content"
    EDITOR_CONTENT = "editor_content"
    SOURCE_CODE = "source_code"
    INTERNAL_CONFIGURATION = "internal_configuration"
    SYSTEM_DIAGNOSTICS = "system_diagnostics"
    SECRET_ADJACENT = "secret_adjacent"  # noqa: S105 - the name of a class
    UNREADABLE = "unreadable"


class TrustZone(StrEnum):
    """Where a provider or a tool's host stands, most trusted first. A zone is an operator's declaration."""

    LOCAL = "local"
    PRIVATE_HOSTED = "private_hosted"
    EXTERNAL_EU = "external_eu"
    EXTERNAL_GLOBAL = "external_global"


class Enforcement(StrEnum):
    """What a verdict above the ceiling does: `observe` records it, `enforce` refuses."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class Verdict(StrEnum):
    """Outcome of one gate decision. `observed` is a refusal that the policy only records."""

    PERMITTED = "permitted"
    OBSERVED = "observed"
    REFUSED = "refused"


class RunStatus(StrEnum):
    """Status of the run's row; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_INPUT = "waiting_for_input"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATUSES: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
WAITING_STATUSES: Final = frozenset({RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT})


class TerminationReason(StrEnum):
    """Why a run ended; `STATUS_OF` gives the status that goes with each."""

    COMPLETED = "completed"
    MAX_ITERATIONS = "max_iterations"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CONTEXT_TRUNCATED = "context_truncated"
    CONTEXT_BLOCKED = "context_blocked"
    CONFIGURATION_GONE = "configuration_gone"
    POLICY_DENIED = "policy_denied"
    EXPIRED = "expired"
    PROVIDER_FAILED = "provider_failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    NOT_RETRYABLE = "not_retryable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CORRUPT = "corrupt"
    CANCELLED = "cancelled"

    @property
    def truncated(self) -> bool:
        """Whether the run completed without the answer that it was working towards."""
        return self in (
            TerminationReason.MAX_ITERATIONS,
            TerminationReason.BUDGET_EXHAUSTED,
            TerminationReason.CONTEXT_TRUNCATED,
        )


STATUS_OF: Final[dict[TerminationReason, RunStatus]] = {
    reason: (
        RunStatus.COMPLETED
        if reason is TerminationReason.COMPLETED or reason.truncated
        else RunStatus.CANCELLED
        if reason is TerminationReason.CANCELLED
        else RunStatus.FAILED
    )
    for reason in TerminationReason
}


class ToolEffect(StrEnum):
    """What calling a tool does to the world, ascending in danger. A property of code; unknown = the last."""

    READ_ONLY = "read_only"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"

    @property
    def is_write(self) -> bool:
        """Whether the world may look different afterwards."""
        return self is not ToolEffect.READ_ONLY


class QuestionKind(StrEnum):
    """What a waiting run asks a person."""

    APPROVAL = "approval"
    INPUT = "input"
    OUTCOME = "outcome"


class BlockedReason(StrEnum):
    """Why an answered run could not go on. `key` and `version` are derived when read, never stored."""

    CONTEXT = "context"
    CONFIGURATION_GONE = "configuration_gone"
    OWNER = "owner"
    CORRUPT = "corrupt"
    CATALOGUE = "catalogue"
    KEY = "key"
    VERSION = "version"


class SourceKind(StrEnum):
    """Kind of a text that is put in front of the model; the first two have the configuration's uid."""

    SYSTEM_PROMPT = "system_prompt"
    PROMPT_OVERRIDE = "prompt_override"
    SNIPPET = "snippet"
    SKILL = "skill"


class SourceOrigin(StrEnum):
    """How a source came onto the run."""

    CONFIGURATION = "configuration"
    FORCED = "forced"
    OVERRIDE = "override"


class DropReason(StrEnum):
    """Why a source does not count: switched off, no living record, or no room in the skill block."""

    DEACTIVATED = "deactivated"
    GONE = "gone"
    OVER_BUDGET = "over_budget"


class DroppedWhen(StrEnum):
    """When it was noticed that a source does not count."""

    COMPOSED = "composed"
    RESUMED = "resumed"


class Phase(StrEnum):
    """Phase of the machine; the row's status follows from it."""

    NEW = "new"
    MODEL = "model"
    TOOLS = "tools"
    WAITING = "waiting"
    PARKED = "parked"
    DONE = "done"


class CallStatus(StrEnum):
    """Where one tool call of the turn stands."""

    PREVIEW = "preview"
    HELD = "held"
    READY = "ready"
    OPEN = "open"
    ASK = "ask"
    NEED_INPUT = "need_input"
    UNKNOWN = "unknown"
    DONE = "done"


class ResumeCause(StrEnum):
    """Why a segment of a run that had already started begins."""

    ANSWER = "answer"
    RESUME = "resume"
    RECOVERY = "recovery"
    RETRY = "retry"
    DRAIN = "drain"
    REQUEUE = "requeue"


class FailureClass(StrEnum):
    """Class of a failed send or call; the only thing about a failure that is stored in the clear."""

    CONNECTION = "connection"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    AUTH = "auth"
    CONFIGURATION = "configuration"
    CLIENT_ERROR = "client_error"
    INVALID_REPLY = "invalid_reply"
    PERMIT_EXPIRED = "permit_expired"
    TIMEOUT = "timeout"
    RAISED = "raised"
    NOT_EXECUTED = "not_executed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"

    @property
    def retryable(self) -> bool:
        """Whether the same send may succeed later or elsewhere (connection, 429, 5xx)."""
        return self in (FailureClass.CONNECTION, FailureClass.RATE_LIMIT, FailureClass.SERVER_ERROR)


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


class Role(StrEnum):
    """Author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Where a run was started."""

    PLAYGROUND = "playground"
    CLI = "cli"
    QUEUE = "queue"
    API = "api"
    FORK = "fork"
    REQUEUE = "requeue"


class ActorKind(StrEnum):
    """What an actor is. `local` holds the database and the key ring and may do everything."""

    USER = "user"
    SERVICE = "service"
    ANONYMOUS = "anonymous"
    LOCAL = "local"


class ExposureState(StrEnum):
    """What is known about a source's text and a provider: it answered, every send failed, or one was lost.

    None of them says that the text was not received: a send fails too when the answer is an error or does not come.
    """

    POSSIBLE = "possible"
    FAILED = "failed"
    ANSWERED = "answered"
