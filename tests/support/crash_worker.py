"""A worker process that strikes itself at a named point; see `tests.support.crash_points`."""

from __future__ import annotations

import os

from tests.support import worker_process
from tests.support.crash_points import arm

__all__ = ["main"]


def main() -> None:
    """Serve until SIGTERM, or until the strike."""
    arm(os.environ)
    worker_process.main()


if __name__ == "__main__":
    main()
