"""A worker on a host whose clock is wrong: `CLOCK_SHIFT` seconds ahead. Python's clock, not the database's."""

from __future__ import annotations

import os
import sys
import time

__all__ = ["SHIFT", "main"]

SHIFT = "CLOCK_SHIFT"


def main() -> None:
    """Begin anew as a process that has imported nothing yet: who imports a clock keeps the one that he found."""
    os.execv(sys.executable, [sys.executable, "-m", __name__])


def _serve() -> None:
    shift = float(os.environ[SHIFT])
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + shift
    time.time_ns = lambda: real_ns() + int(shift * 1e9)
    from tests.support import worker_process

    worker_process.main()


if __name__ == "__main__":
    _serve()
