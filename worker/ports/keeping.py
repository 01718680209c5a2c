"""Ports: what an operator keeps up. Which keys wrap what is stored, and how long the content of runs is kept.

Every method may be called again after a crash, and by several processes at once: what is done is done, the rest is
found anew. Errors: `StoreError`, and `KeepingError` where something besides the database stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from codec.vocabulary import RunStatus

__all__ = ["KeepingError", "KeyKeeping", "KeyRow", "Progress", "Purging", "Rotation", "Wanted"]

Progress = Callable[[int, int], None]
"""Told how many rows are done, and of how many; called between two transactions."""


class KeepingError(Exception):
    """It cannot be done, and the message says what stands in the way. `code` is a stable word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key that wraps data keys, as the ring, the database or a row names it.

    Shape: `active` = new data keys are wrapped by it; `here` = it is in this process's ring; `known` = the database has
    its check value; `runs` and `records` (of the catalogue) are wrapped by it now.
    """

    id: str
    active: bool
    here: bool
    known: bool
    runs: int
    records: int
    created_at: float | None

    @property
    def rows(self) -> int:
        """Everything that nobody opens without this key."""
        return self.runs + self.records


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation did: how many runs and records it wrapped anew, and the other keys that rows are still under.

    `fresh` = it made `active` active; else it finished what an earlier one had begun.
    """

    active: str
    fresh: bool
    runs: int
    records: int
    left: tuple[KeyRow, ...]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to purge: of these final statuses, ended before `before` (by the database's clock), the oldest first.

    `limit` None = all of them. A run that was purged already, or whose last segment has not ended, is none of them.
    """

    statuses: tuple[RunStatus, ...]
    before: float
    limit: int | None = None


class KeyKeeping(Protocol):
    """The key ring of an installation: a file that each host has, and what the database knows of it."""

    async def keys(self) -> list[KeyRow]:
        """Every key that the ring, the database or a row names: those of the ring first, the oldest first."""
        ...

    async def add(self, *, force: bool, actor: str, via: str) -> str:
        """Put a new key into the ring and its check value into the database; gives its id. It is not active yet.

        `force` = also when the database knows a newer key than this ring has.
        """
        ...

    async def rotate(self, *, add: bool, actor: str, via: str, progress: Progress) -> Rotation:
        """Make the ring's newest key the active one, and wrap every data key that can be opened here under it.

        `add` = add a key when none is new. Laws: no content is sealed anew; the catalogue's version stays; a run that
        is purged or driven meanwhile loses nothing. A rotation that was interrupted is finished by the next one, which
        adds no key as long as anything is left to do. Start-up is possible at every moment with what is on disk.
        """
        ...


class Purging(Protocol):
    """Destroys what runs said. What is known about them in the clear stays: rows, events, exposures, the audit."""

    async def count(self, wanted: Wanted) -> int:
        """How many runs would be purged now."""
        ...

    async def purge(self, wanted: Wanted, *, actor: str, via: str, progress: Progress) -> int:
        """Destroy the data keys of runs and everything that is sealed under them; gives how many runs it were.

        Laws: each run is purged whole or not at all, with its row of the audit; afterwards its `wrapped_key` is empty,
        it has no documents, and its entries and answers have no payload.
        """
        ...

    async def wipe(self, *, compact: bool) -> None:
        """Leave nothing in the database's files of what was overwritten or deleted, as far as they are ours.

        `compact` = also rewrite the file, which nobody else writes meanwhile.
        """
        ...

    async def size(self) -> int | None:
        """Bytes of the database's file; None when it is not a file of ours."""
        ...
