"""Who may do what to a run, from outside of it. What somebody may not know of is not found."""

from __future__ import annotations

import msgspec

from codec.actor import Actor, LiveActor
from codec.catalogue import CatalogueSnapshot
from codec.facts import Facts
from codec.request import AgentRunRequest
from codec.vocabulary import Role
from worker.core.people import holds, may_read_content, reading_class
from worker.core.policy import live_actor
from worker.ports.records import RunRow
from worker.runtime.errors import ForbiddenError, NotFoundError
from worker.runtime.views import Inside

__all__ = ["live", "may_see_content", "must_cancel", "must_decide", "must_see", "must_start"]


def live(snapshot: CatalogueSnapshot, actor: Actor) -> LiveActor:
    """Give an actor's live rights."""
    return live_actor(snapshot, actor)


def must_start(actor: LiveActor, request: AgentRunRequest) -> None:
    """Check the right to start this run. Errors: `ForbiddenError` naming the right that lacks."""
    if not holds(actor, "runs:start"):
        raise ForbiddenError("not_permitted", f"{actor.name} may not start runs (needs runs:start)")
    forces = request.augmentation is not None and (
        request.augmentation.forced_snippet_uids
        or request.augmentation.forced_skill_uids
        or request.augmentation.system_prompt_override
    )
    if (forces or any(m.role is Role.SYSTEM for m in request.messages)) and not holds(actor, "sources:force"):
        raise ForbiddenError(
            "not_permitted", f"{actor.name} may not force sources or system texts (needs sources:force)"
        )


def must_see(actor: LiveActor, row: RunRow) -> None:
    """Check the right to a run's metadata: owner, `runs:read`, or `runs:decide`, since nobody can deny unseen.

    Errors: `NotFoundError`, as if there were no such run.
    """
    if (actor.enabled and actor.name == row.owner) or holds(actor, "runs:read") or holds(actor, "runs:decide"):
        return
    raise NotFoundError("not_found", "there is no such run", uuid=row.uuid)


def may_see_content(actor: LiveActor, inside: Inside, facts: Facts | None) -> bool:
    """Whether the texts of an opened run may be shown to this actor.

    Judged by what is sealed (whose run it is, what it carries) and by live classes (`facts`), never by the row alone.
    """
    state = inside.state
    if state is not None and state.run:
        live = state if facts is None else msgspec.structs.replace(state, facts=facts)
        return may_read_content(actor, state.owner.name, reading_class(live))
    return inside.request is not None and may_read_content(actor, inside.request.actor.name, None)


def must_decide(actor: LiveActor, row: RunRow) -> None:
    """Check the right to answer. Errors: `NotFoundError` when not even the metadata is the actor's, else forbidden."""
    if holds(actor, "runs:decide"):
        return
    must_see(actor, row)
    raise ForbiddenError("not_permitted", f"{actor.name} may not decide (needs runs:decide)", uuid=row.uuid)


def must_cancel(actor: LiveActor, row: RunRow) -> None:
    """Check the right to cancel: owner, or `runs:cancel`. Errors as `must_decide`."""
    if (actor.enabled and actor.name == row.owner) or holds(actor, "runs:cancel"):
        return
    must_see(actor, row)
    raise ForbiddenError("not_permitted", f"{actor.name} may not cancel (needs runs:cancel)", uuid=row.uuid)
