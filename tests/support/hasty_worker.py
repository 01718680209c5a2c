"""A worker that waits for a statement `WAIT_S` seconds at most, so that a test need not wait for half a minute."""

from __future__ import annotations

import os
from typing import Any

from tests.support import worker_process
from worker.adapters.sql.engine import Database

__all__ = ["WAIT", "main"]

WAIT = "WAIT_S"


def main() -> None:
    """Serve until SIGTERM."""
    opened = Database.open.__func__  # type: ignore[attr-defined]

    def hasty(cls: type[Database], url: str, /, **options: Any) -> Database:
        found: Database = opened(cls, url, **options | {"wait_s": float(os.environ[WAIT])})
        return found

    Database.open = classmethod(hasty)  # type: ignore[assignment, method-assign]
    worker_process.main()


if __name__ == "__main__":
    main()
