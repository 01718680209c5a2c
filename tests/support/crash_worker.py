"""A worker process that kills itself before or after its n-th commit, as `CRASH_AT=before:3` says."""

from __future__ import annotations

import os
import signal

from tests.support.worker_process import main
from worker.adapters.sql.store import SqlRunStore
from worker.ports.records import Append, Commit

__all__: list[str] = []


def _arm(when: str, number: int) -> None:
    commit = SqlRunStore.commit
    seen = 0

    async def killing(self: SqlRunStore, step: Append) -> Commit:
        nonlocal seen
        seen += 1
        mine = seen == number
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = await commit(self, step)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    SqlRunStore.commit = killing  # type: ignore[method-assign]


if __name__ == "__main__":
    at, _, counted = os.environ["CRASH_AT"].partition(":")
    _arm(at, int(counted))
    main()
