"""One opened installation for one command: who acts, and the loop that the command runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from codec.actor import LOCAL, Actor
from codec.catalogue import CatalogueSnapshot
from codec.vocabulary import RunStatus
from codec.wire import Shown
from worker.bootstrap import Installation, StartError, open_installation
from worker.cli.faults import NOT_FOUND, REFUSED, CommandError
from worker.cli.options import Asked
from worker.core.people import holds
from worker.runtime import rights
from worker.runtime.errors import ForbiddenError
from worker.runtime.service import Runtime, at_rest

__all__ = ["VIA", "Session", "actor_named", "exit_of", "in_session"]

VIA: Final = "cli"
_RECHECK_S: Final = 5.0
"""Seconds of waiting for a worker before it is asked again whether one lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a command works with."""

    asked: Asked
    opened: Installation
    actor: Actor

    @property
    def runtime(self) -> Runtime:
        """All verbs."""
        return self.opened.runtime

    async def must_hold(self, right: str, what: str) -> None:
        """Check a right that belongs to no run. Errors: `ForbiddenError`."""
        live = rights.live(await self.runtime.feed.current(), self.actor)
        if not holds(live, right):
            raise ForbiddenError("not_permitted", f"{self.actor.name} may not {what} (needs {right})")

    async def help_along(self, uuid: str, *, wait: bool) -> None:
        """See that somebody drives a run that is due: without a live worker this process does, to its rest.

        `wait` = also wait for the rest when a worker drives.
        """
        while await self.opened.workers():
            if not wait or await self._rested(uuid):
                return
        await self.runtime.drive(uuid)

    async def _rested(self, uuid: str) -> bool:
        try:
            async with asyncio.timeout(_RECHECK_S):
                await self.runtime.wait(uuid)
        except TimeoutError:
            row = await self.runtime.parts.store.run(uuid)
            return row is None or at_rest(row)
        return True


def in_session(asked: Asked, work: Callable[[Session], Awaitable[int | None]]) -> int:
    """Open the installation, do the work on a loop of its own, close again; give the exit code.

    Errors: whatever `fault_of` knows.
    """
    return asyncio.run(_opened(asked, work))


async def _opened(asked: Asked, work: Callable[[Session], Awaitable[int | None]]) -> int:
    async with _session(asked) as session:
        return await work(session) or 0


@asynccontextmanager
async def _session(asked: Asked) -> AsyncIterator[Session]:
    try:
        async with open_installation(asked.settings(), kind="cli") as opened:
            actor = LOCAL if asked.acts_as is None else actor_named(await opened.runtime.feed.current(), asked.acts_as)
            yield Session(asked=asked, opened=opened, actor=actor)
    except StartError as error:
        raise CommandError("start", str(error), REFUSED) from None


def actor_named(snapshot: CatalogueSnapshot, name: str) -> Actor:
    """Give the identity of a known actor with the rights that it has now. Errors: `CommandError`, not found."""
    if name == LOCAL.name:
        return LOCAL
    known = snapshot.actors.get(name)
    if known is None:
        raise CommandError("unknown_actor", "there is no such actor", NOT_FOUND)
    return Actor(
        kind=known.kind,
        name=known.name,
        uid=known.uid,
        admin=known.admin,
        groups=known.groups,
        grants=known.grants,
        scopes=known.scopes,
    )


def exit_of(shown: Shown) -> int:
    """Give the exit code of a run's rest: 1 when it failed, was cancelled, or is blocked."""
    ended_badly = shown.status in (RunStatus.FAILED, RunStatus.CANCELLED)
    return REFUSED if ended_badly or shown.blocked is not None else 0
