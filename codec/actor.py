"""Who acts: the identity that travels with a run, and the rights somebody has now."""

from __future__ import annotations

from typing import Final

import msgspec

from codec.vocabulary import ActorKind, DeclaredClass

__all__ = ["ANONYMOUS", "LOCAL", "Actor", "LiveActor"]


class Actor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An identity and the rights it had when the run was made.

    Shape: `uid` is the actor's row, None for local and anonymous. `grants` belong to users, `scopes` to service
    accounts; there is no wildcard. What counts later is the intersection with the live rights.
    """

    kind: ActorKind
    name: str
    uid: int | None = None
    admin: bool = False
    groups: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class LiveActor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rights an actor has now. `enabled` is False when it was disabled or is gone.

    Shape: `max_class` bounds whose content this person may read; None reads nothing above undeclared.
    """

    kind: ActorKind
    name: str
    uid: int | None = None
    enabled: bool = False
    admin: bool = False
    groups: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    max_class: DeclaredClass | None = None


LOCAL: Final = Actor(kind=ActorKind.LOCAL, name="local", admin=True)
"""Whoever holds the database and the key ring: the command line and code that opens the runtime."""
ANONYMOUS: Final = Actor(kind=ActorKind.ANONYMOUS, name="anonymous")
"""Nobody. May do nothing."""
