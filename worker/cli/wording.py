"""Sentences about runs: why one is blocked and what helps, what it waits for, how it ended. Never a text of a run."""

from __future__ import annotations

from typing import Final

from codec.vocabulary import BlockedReason, QuestionKind, RunStatus, TerminationReason
from codec.wire import ShownBlocked
from worker.cli.texts import harmless

__all__ = ["ENDED", "STATUS_STYLE", "WAITS_FOR", "blocked_remedy", "blocked_sentence", "exceeds"]

STATUS_STYLE: Final = {
    RunStatus.QUEUED: "cyan",
    RunStatus.RUNNING: "cyan",
    RunStatus.WAITING_FOR_APPROVAL: "yellow",
    RunStatus.WAITING_FOR_INPUT: "yellow",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "dim",
}
WAITS_FOR: Final = {
    QuestionKind.APPROVAL: "somebody must approve or deny",
    QuestionKind.INPUT: "somebody must supply what the tool asks for",
    QuestionKind.OUTCOME: "somebody must say what became of a call",
}
ENDED: Final = {
    TerminationReason.MAX_ITERATIONS: "it used up its rounds; the answer is what it had until then",
    TerminationReason.BUDGET_EXHAUSTED: "it used up its tokens or its time",
    TerminationReason.CONTEXT_TRUNCATED: "what it must send does not fit into the model's context any more",
    TerminationReason.CONTEXT_BLOCKED: "the gate refused what it would have sent; nothing was sent",
    TerminationReason.CONFIGURATION_GONE: "its configuration or its provider no longer exists",
    TerminationReason.POLICY_DENIED: "the policy denied it",
    TerminationReason.EXPIRED: "its question expired before anybody answered",
    TerminationReason.PROVIDER_FAILED: "no provider of its chain answered",
    TerminationReason.RETRIES_EXHAUSTED: "it was tried again as often as is allowed",
    TerminationReason.NOT_RETRYABLE: "a provider refused it for a reason that another try does not mend",
    TerminationReason.OUTCOME_UNKNOWN: "somebody ended it, because nobody knows what became of a call",
    TerminationReason.CORRUPT: "what is stored of it cannot be read",
}
_SENTENCE: Final = {
    BlockedReason.CONFIGURATION_GONE: "its configuration no longer exists, and a deleted one never comes back",
    BlockedReason.OWNER: "who started it has no rights any more",
    BlockedReason.KEY: "the key ring of this machine lacks the key that sealed it",
    BlockedReason.VERSION: "a newer build of regate wrote it",
    BlockedReason.CORRUPT: "it cannot be read: it was damaged or changed, or whoever tried died of it",
    BlockedReason.CATALOGUE: "the catalogue cannot be read, and then nothing is permitted",
}
_REMEDY: Final = {
    BlockedReason.CONTEXT: "use a provider in a trusted zone or lower the class, then: regate resume {uuid}",
    BlockedReason.CONFIGURATION_GONE: "start the run anew under another one; end this one with: regate cancel {uuid}",
    BlockedReason.OWNER: "add the actor again (regate actor add), then: regate resume {uuid}",
    BlockedReason.KEY: "restore the newer keys.json (see REGATE_KEYS_FILE); a process that holds the key goes on",
    BlockedReason.VERSION: "start a worker of that build; it goes on by itself",
    BlockedReason.CORRUPT: "if regate replay {uuid} names a damage: regate cancel {uuid}; else: regate resume {uuid}",
    BlockedReason.CATALOGUE: "see regate doctor; when it is mended: regate resume {uuid}",
}


def blocked_sentence(blocked: ShownBlocked) -> str:
    """Say what blocks a run."""
    if blocked.reason is not BlockedReason.CONTEXT:
        return _SENTENCE[blocked.reason]
    return exceeds(
        source=blocked.source,
        data_class=blocked.data_class,
        zone=blocked.zone,
        ceiling=blocked.ceiling,
        provider=blocked.provider,
        configuration=blocked.configuration,
    )


def exceeds(
    *,
    source: str | None,
    data_class: str | None,
    zone: str | None,
    ceiling: str | None,
    provider: str | None,
    configuration: str | None,
) -> str:
    """Say in one sentence which source is above which ceiling, and who set it."""
    told = (
        f"{source} is {data_class}, above {ceiling}, which is the ceiling of {zone}, "
        f'the zone of {provider} in configuration "{configuration}"'
    )
    return harmless(told)


def blocked_remedy(blocked: ShownBlocked, uuid: str) -> str:
    """Say what to do about it."""
    return _REMEDY[blocked.reason].format(uuid=uuid)
