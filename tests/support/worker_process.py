"""A worker process for tests, as the command starts one: settings from the environment, log lines as JSON on stderr.

`ready` is printed when it takes wake-ups. `tests.support.crash_worker` is one that kills itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from worker.queue.serve import serve_worker
from worker.settings import Settings

__all__ = ["main"]


def _log(name: str, fields: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps({"event": name, **fields}) + "\n")
    sys.stderr.flush()


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until SIGTERM."""
    asyncio.run(serve_worker(Settings.load(os.environ), kind="worker", log=_log, ready=_ready))


if __name__ == "__main__":
    main()
