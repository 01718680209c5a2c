"""The key ring's file: made or replaced whole or not at all, readable by its owner alone, changed by one at a time.

Errors: `OSError`; what stood there before stands there still.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["create_file", "locked", "replace_file"]

_POLL_S: Final = 0.05


def create_file(path: Path, data: bytes) -> None:
    """Write a file that is not there yet. Errors: `FileExistsError`, also when it appeared this moment."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_new(fresh, data, None)
        path.hardlink_to(fresh)  # unlike a rename it refuses to replace
    finally:
        fresh.unlink(missing_ok=True)
    _sync_folder(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file that is there, and keep whose it is. Call with the file `locked`.

    Law: root may change the ring of a user whose workers go on to read it. What a link leads to is replaced, not it.
    """
    path = path.resolve()
    owner = path.stat().st_uid
    fresh = _fresh(path)
    fresh.unlink(missing_ok=True)
    try:
        _write_new(fresh, data, owner)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Keep others from changing the file meanwhile; reading it needs no lock. Blocks.

    The lock is a file beside it, since the ring itself is another file after each change. A process that dies gives it
    back; what it left half written is removed. Errors: `TimeoutError` after `wait_s` seconds.
    """
    path = path.resolve()
    owner = path.stat().st_uid
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _give(fd, owner)
        _lock(fd, time.monotonic() + wait_s)
        _fresh(path).unlink(missing_ok=True)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, deadline: float) -> None:
    while True:  # flock knows no timeout
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            time.sleep(_POLL_S)
        else:
            return


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _write_new(path: Path, data: bytes, owner: int | None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        if owner is not None:
            _give(fd, owner)
        file.write(data)
        file.flush()
        os.fsync(fd)


def _give(fd: int, owner: int) -> None:
    if os.fstat(fd).st_uid != owner:
        os.fchown(fd, owner, -1)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
