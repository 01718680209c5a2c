"""The beat: tells whoever supervises this process that it is ready, that its event loop turns, and that it drains.

The loop itself renews it, so one that hangs falls silent. Two can listen: the time of a file (`REGATE_BEAT_FILE`, for
probes that run a command) and systemd (`$NOTIFY_SOCKET`: `Type=notify`, `WatchdogSec`). It says nothing of the database
or the broker: a process that is started anew would find them no better.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from worker.bootstrap import StartError
from worker.telemetry import Log

__all__ = ["Beat", "beating"]

_EVERY_S: Final = 1.0
"""Seconds between two beats: several within the shortest patience that a probe should have (15 s in `deploy/`)."""


class Beat:
    """What a process says of itself. Made by `beating`; call its methods on the loop."""

    def __init__(self, file: Path | None, systemd: socket.socket | None, log: Log) -> None:
        self._file = file
        self._systemd = systemd
        self._log = log
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """Say that the process does its work, and beat from now on, through the drain too. Once."""
        self._tell("READY=1")
        self._task = asyncio.create_task(self._forever(), name="beat for supervisors")

    def draining(self) -> None:
        """Say that it was asked to end."""
        self._tell("STOPPING=1")

    def end(self) -> None:
        """Fall silent; the file is gone then."""
        if self._task is not None:
            self._task.cancel()
        if self._file is not None:
            with suppress(OSError):  # what stays there grows old
                self._file.unlink()
        if self._systemd is not None:
            self._systemd.close()

    async def _forever(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            self._touch()
            await asyncio.sleep(_EVERY_S)

    def _touch(self) -> None:
        if self._file is None:
            return
        try:
            self._file.touch(mode=0o600)
        except OSError as error:
            if not self._failed:  # once, not every second: the next one may be written again
                self._log("beat.not_written", {"error": type(error).__name__})
            self._failed = True
        else:
            self._failed = False

    def _tell(self, state: str) -> None:
        if self._systemd is not None:
            with suppress(OSError):  # full, because nobody reads it just now, or gone: systemd will say so itself
                self._systemd.send(state.encode())


@asynccontextmanager
async def beating(file: Path | None, log: Log) -> AsyncIterator[Beat]:
    """Give this process's beat; it is silent until `ready`. What an earlier process left in `file` is removed.

    Errors: `StartError` when the file cannot be written: whoever reads it would end the process again and again.
    """
    if file is not None:
        _clear(file)
    beat = Beat(file, _systemd(os.environ.get("NOTIFY_SOCKET", "")), log)
    try:
        yield beat
    finally:
        beat.end()


def _clear(file: Path) -> None:
    try:
        file.touch(mode=0o600)
        file.unlink()
    except OSError as error:
        raise StartError(f"the beat file {file} cannot be written ({type(error).__name__})") from None


def _systemd(address: str) -> socket.socket | None:
    """Connect to the socket that systemd named, if it did. One that begins with @ is in no file system."""
    if not address:
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.setblocking(False)  # the loop must never wait for whoever reads it
    try:
        found.connect(f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        found.close()
        return None
    return found
