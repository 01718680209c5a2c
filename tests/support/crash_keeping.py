"""`regate` with arguments, in a process that sends itself a signal as soon as its n-th step is done: `STRIKE="3 9"`.

A step is a transaction, or a change of the ring's file inside of one. Batches are small, so that there are many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from worker.adapters.sealing import KeyRing
from worker.adapters.sql import purge, rotation
from worker.adapters.sql.engine import Database
from worker.cli.main import main as regate

__all__ = ["main"]


def _arm(last: int, number: int) -> None:
    transact, save, done = Database.transact, KeyRing.save, 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == last:
            os.kill(os.getpid(), number)

    async def counted(self: Database, work: Callable[..., Any], /, *args: Any, **given: Any) -> Any:
        result = await transact(self, work, *args, **given)
        count()
        return result

    def saved(self: KeyRing, path: Path) -> None:
        save(self, path)
        count()

    Database.transact = counted  # type: ignore[method-assign]
    KeyRing.save = saved  # type: ignore[method-assign]
    rotation._BATCH = purge._BATCH = 2  # type: ignore[misc]


def main() -> NoReturn:
    """Run the command line of this process."""
    _arm(*map(int, os.environ["STRIKE"].split()))
    regate()


if __name__ == "__main__":
    main()
