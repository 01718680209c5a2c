"""Port: which processes of this installation live, by the database's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Fleet", "Member"]


class Member(Protocol):
    """One process. `alive` = it beat lately enough."""

    @property
    def id(self) -> str:
        """Its id, `kind:host:pid:random`."""
        ...

    @property
    def kind(self) -> str:
        """What it is: worker, sweeper, up."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it beat within the time asked for."""
        ...


class Fleet(Protocol):
    """The table of processes. Information for people and commands; no decision about a run depends on it."""

    async def register(self, id: str, *, kind: str, host: str, pid: int) -> None:
        """Say that a process lives."""
        ...

    async def beat(self, id: str) -> bool:
        """Say that it still lives. False when it was removed and should register again."""
        ...

    async def list(self, alive_s: float) -> Sequence[Member]:
        """All processes; alive are those that beat within `alive_s` seconds."""
        ...

    async def remove_silent(self, silent_s: float) -> int:
        """Forget the processes that have not beaten for so long; gives their number."""
        ...

    async def remove(self, id: str) -> None:
        """Say that it has ended."""
        ...
