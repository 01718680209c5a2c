"""What people may do: reading, deciding and releasing. Pure; rights are live facts.

A verb's right is a grant of a user or a scope of a service account; an admin holds every grant.
"""

from __future__ import annotations

from codec.actor import Actor, LiveActor
from codec.facts import Facts
from codec.suspended import Call, SuspendedRunState
from codec.vocabulary import ActorKind, DeclaredClass, SourceKind
from worker.core.offering import policy_denial
from worker.core.zones import class_rank, strictest

__all__ = ["holds", "may_decide", "may_read_content", "may_release", "reading_class", "release_problem"]


def holds(actor: LiveActor, right: str) -> bool:
    """Whether an actor has a right now."""
    if not actor.enabled:
        return False
    if actor.admin and actor.kind is not ActorKind.SERVICE:
        return True
    return right in (actor.scopes if actor.kind is ActorKind.SERVICE else actor.grants)


def may_decide(actor: LiveActor) -> bool:
    """Whether an actor may answer questions at all."""
    return holds(actor, "runs:decide")


def reading_class(state: SuspendedRunState) -> DeclaredClass | None:
    """Give the run's high-water class: the strictest that its sources were ever seen with and its tools returned."""
    found = state.high_water
    live = {(s.kind, s.uid): s.declared for s in state.facts.sources}
    configuration = state.facts.configuration
    for carried in state.carried:
        declared = live.get((carried.kind, carried.uid))
        if carried.kind in (SourceKind.SYSTEM_PROMPT, SourceKind.PROMPT_OVERRIDE) and configuration is not None:
            declared = configuration.prompt_class
        found = strictest(found, strictest(carried.seen, declared))
    return found


def may_read_content(actor: LiveActor, owner: str, high_water: DeclaredClass | None) -> bool:
    """Whether an actor may see a run's texts: owner or `runs:content`, and cleared for the high-water class."""
    if not actor.enabled or not (actor.name == owner or holds(actor, "runs:content")):
        return False
    if actor.kind is ActorKind.LOCAL or high_water is None:
        return True
    # An admin without a clearance of its own reads everything: it could grant itself one.
    if actor.admin and actor.max_class is None:
        return True
    return actor.max_class is not None and class_rank(actor.max_class) >= class_rank(high_water)


def release_problem(
    facts: Facts,
    owner: Actor,
    call: Call,
    actor: LiveActor,
    high_water: DeclaredClass | None,
    *,
    executes: bool = True,
) -> str | None:
    """Say why an actor may not let this call through, as a stable word, or None when it may.

    Checked for every released call, when the answer is given and again when it is folded: the right to decide, no
    service account for writes or input, four eyes (the human at the root may not release, admins included; a denial is
    always allowed), the tool policy for the decider, and that the decider may read the call in full. `executes` False
    leaves the tool policy out: for an outcome that runs nothing any more.
    """
    if not may_decide(actor):
        return "not_permitted"
    if actor.kind is ActorKind.SERVICE and (call.effect.is_write or not call.gated):
        return "service_account"
    configuration = facts.configuration
    human_owner = owner.kind not in (ActorKind.SERVICE, ActorKind.ANONYMOUS)
    if configuration is not None and configuration.require_second_approver and human_owner and owner.name == actor.name:
        return "second_approver"
    denial = policy_denial(facts, call.name, actor) if executes else None
    if denial is not None and not denial.observed:
        return denial.reason
    return None if may_read_content(actor, owner.name, high_water) else "not_cleared"


def may_release(state: SuspendedRunState, call: Call, actor: LiveActor, *, executes: bool = True) -> bool:
    """Whether an actor may let this call of a run through now."""
    return release_problem(state.facts, state.owner, call, actor, reading_class(state), executes=executes) is None
