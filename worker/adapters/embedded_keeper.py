"""The process that owns the embedded Valkey: the server's parent, which ends it with its last user.

Started by path, isolated (`python -I -S embedded_keeper.py FOLDER SOCKET BINARY`), so it imports the standard
library alone and nothing of ours. In FOLDER it shares three locks (flock, freed by the kernel with whoever held
them, however that one died) with `worker.adapters.embedded_valkey`:

    users.lock    shared by every user; the keeper waits for it exclusively, and having it means: nobody is left
    start.lock    held by the user that looks after the server and may start a keeper
    keeper.lock   held by the keeper for its life; its text is the keeper's process id

Two ropes bind the server: the keeper ends it, and on Linux the kernel kills it when the keeper dies.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["KEEPER_LOCK", "LOG_NAME", "START_LOCK", "USERS_LOCK", "ask_server", "main", "take_lock"]

KEEPER_LOCK: Final = "keeper.lock"
START_LOCK: Final = "start.lock"
USERS_LOCK: Final = "users.lock"
LOG_NAME: Final = "valkey.log"

#: Seconds that a server has to write its file and go before it is killed. Measured: 0.01 to 0.1 s.
_STOP_SECONDS: Final = 5.0

#: Seconds. A server that lived shorter counts as one that failed to start.
_SHORT_LIFE_SECONDS: Final = 5.0

#: Starts in a row that failed, after which the keeper gives up; the next user tries with a new one.
_MAX_SHORT_LIVES: Final = 5

_PR_SET_PDEATHSIG: Final = 1


def take_lock(fd: int, operation: int, seconds: float) -> bool:
    """Take a flock within `seconds`; False when someone else kept it. Polls, since flock knows no timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        else:
            return True


def ask_server(path: str, command: bytes, *, seconds: float = 0.5) -> bytes:
    """Send one inline command to the server at this unix socket and return the start of its answer.

    Empty when nobody listens, nobody answers within `seconds`, or the server closed the connection.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(path)
            connection.sendall(command + b"\r\n")
            return connection.recv(64)
        except OSError:
            return b""


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """Make the function that a server runs between fork and exec, so that it cannot outlive the keeper."""
    if not sys.platform.startswith("linux"):
        return None
    # Loaded before the fork: afterwards as little as possible may run.
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        # SIGKILL loses nothing that was acknowledged: the file was written before the answer.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the keeper died before the rope was tied
            os._exit(1)

    return bind


class _Keeper:
    """One server, restarted when it dies, ended when the last user has left or the keeper is told to end."""

    def __init__(self, folder: Path, socket_path: str, binary: str) -> None:
        self._folder = folder
        self._socket = socket_path
        self._binary = binary
        self._guard = threading.Lock()
        self._ending = False
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, users_fd: int) -> int:
        """Keep the server until the users are gone; returns the exit status."""
        threading.Thread(target=self._end_with_users, args=(users_fd,), daemon=True).start()
        short_lives = 0
        while (server := self._start()) is not None:
            began = time.monotonic()
            status = server.wait()
            short_lives = short_lives + 1 if time.monotonic() - began < _SHORT_LIFE_SECONDS else 0
            if self._ending:
                break
            if short_lives >= _MAX_SHORT_LIVES:
                return 1
            if status > 0 and short_lives == 2:
                # It refuses to start, most likely on a damaged file. Wake-ups may be lost; a broker may not.
                self._set_file_aside()
        return 0

    def end(self) -> None:
        """Stop the server, by force after a while, and start no other."""
        with self._guard:
            self._ending = True
            server = self._server
        if server is None:
            return
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()

    def _end_with_users(self, users_fd: int) -> None:
        fcntl.flock(users_fd, fcntl.LOCK_EX)
        self.end()

    def _start(self) -> subprocess.Popen[bytes] | None:
        # Called on the main thread only: the kernel ties the second rope to the thread that forks.
        with self._guard:
            if self._ending:
                return None
            self._server = subprocess.Popen(
                [self._binary, *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509 - our other thread only waits in flock
            )
            return self._server

    def _options(self) -> list[str]:
        options = {
            "port": "0",  # no TCP at all
            "unixsocket": self._socket,
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            # A bound on what a forgotten queue can take: about 500,000 wake-ups. Beyond it writes are refused.
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": str(self._folder / LOG_NAME),
            "loglevel": "warning",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _set_file_aside(self) -> None:
        # A folder from version 7 on, a file before.
        for name in ("appendonlydir", "appendonly.aof"):
            current, damaged = self._folder / name, self._folder / f"{name}.damaged"
            if current.exists():
                shutil.rmtree(damaged, ignore_errors=True)
                current.rename(damaged)


def _end_stray(socket_path: str) -> None:
    """End a server whose keeper was killed where the kernel ties no rope, then remove its socket."""
    deadline = time.monotonic() + _STOP_SECONDS
    while ask_server(socket_path, b"PING") and time.monotonic() < deadline:
        ask_server(socket_path, b"SHUTDOWN")
        time.sleep(0.01)
    Path(socket_path).unlink(missing_ok=True)


def _detach(keeper_fd: int) -> None:
    """Leave the parent: it waits for this process, which ends at once and leaves a child that owns the lock."""
    if os.fork():
        os._exit(0)
    os.ftruncate(keeper_fd, 0)
    os.write(keeper_fd, f"{os.getpid()}\n".encode())


def _leave(signum: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    """Keep one server: FOLDER SOCKET BINARY. Returns once detached in the parent, at the end in the child.

    Errors: exit status 3 when another keeper lives, 1 when the server cannot be kept alive.
    """
    folder, socket_path, binary = Path(arguments[0]), arguments[1], arguments[2]
    keeper_fd = os.open(folder / KEEPER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    users_fd = os.open(folder / USERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Taken before detaching: whoever started us knows, when this process has ended, that a keeper is there.
    if not take_lock(keeper_fd, fcntl.LOCK_EX, 1.0):
        return 3
    (folder / LOG_NAME).write_bytes(b"")  # holds the last keeper's time only, so it cannot grow for ever
    _detach(keeper_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a user may have blocked signals; that is inherited
    signal.signal(signal.SIGTERM, _leave)
    _end_stray(socket_path)
    keeper = _Keeper(folder, socket_path, binary)
    try:
        return keeper.run(users_fd)
    finally:
        keeper.end()
        Path(socket_path).unlink(missing_ok=True)
        if Path(socket_path).parent != folder:
            with suppress(OSError):
                Path(socket_path).parent.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
