"""`regate` with arguments, in a process that kills itself as soon as its n-th step is done: `KILL_AFTER=3`.

A step is a transaction, or a change of the ring's file inside of one. Batches are small, so that there are many.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from worker.adapters.sealing import KeyRing
from worker.adapters.sql import purge, rotation
from worker.adapters.sql.engine import Database
from worker.cli.main import main as regate

__all__ = ["main"]


def _arm(last: int) -> None:
    transact, save, done = Database.transact, KeyRing.save, 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

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
    _arm(int(os.environ["KILL_AFTER"]))
    regate()


if __name__ == "__main__":
    main()
