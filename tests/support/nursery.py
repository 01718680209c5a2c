"""Forks processes that have imported everything already, so that starting one costs milliseconds and not a second.

Each is a process of its own: with its environment, its output in files, a process id that anybody may kill, and an exit
code. `tests.support.zygote` does the same for single commands; here many live at once.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Child", "nursery"]

ROOT: Final = Path(__file__).parents[2]
_PR_SET_PDEATHSIG: Final = 1
_IMPORTED: Final = (
    "worker.queue.serve",
    "worker.cli.main",
    "worker.cli.commands.serving",
    "worker.adapters.models.openai_client",
    "worker.adapters.sql.migrate",
    "asyncpg",
    # What the two HTTP clients import with their first request.
    "anyio._backends._asyncio",
    "httpcore",
    "httpcore2",
    "truststore",
    "tests.support.crash_points",
    "tests.support.example_tools",
    "tests.support.world_tools",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A started process. `code` is its exit code once it has ended, negative for a signal."""

    pid: int
    code: Future[int]

    @property
    def lives(self) -> bool:
        """Whether it has not ended yet."""
        return not self.code.done()

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self.lives:
            with suppress(ProcessLookupError):  # the nursery has reaped it and is about to tell
                os.kill(self.pid, number)


class Nursery:
    """The forking process and what was born of it. Ended with this process; its children end with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._born: dict[str, Future[int]] = {}
        self._codes: dict[int, Future[int]] = {}
        self._number = 0
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()

    def start(
        self, module: str, environment: Mapping[str, str], *, out: Path, err: Path, arguments: Sequence[str] = ()
    ) -> Child:
        """Start `main()` of a module; its output is appended to files."""
        born: Future[int] = Future()
        with self._lock:
            self._number += 1
            self._born[str(self._number)] = born
            order = {
                "name": str(self._number),
                "module": module,
                "arguments": list(arguments),
                "environment": dict(environment),
                "streams": [os.devnull, str(out), str(err)],
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        pid = born.result(60)
        return Child(pid=pid, code=self._codes[pid])

    def end(self) -> None:
        """End the nursery and whoever it has left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._codes[told["pid"]].set_result(told["code"])
            else:
                code = self._codes[told["pid"]] = Future()
                code.set_running_or_notify_cancel()  # whoever stops waiting for it takes nothing from the others
                self._born.pop(told["name"]).set_result(told["pid"])


@functools.cache
def nursery() -> Nursery:
    """Give the nursery of this process."""
    made = Nursery()
    atexit.register(made.end)
    return made


# --- the nursery's own process


def serve() -> None:
    """Fork for every line of stdin, and tell of every birth and every end. Has no thread: it could not fork then."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there already is not touched again by anybody's collector, so it stays shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for whoever started us, who then closes our stdin
    noticed, notice = os.pipe()
    os.set_blocking(notice, False)
    signal.set_wakeup_fd(notice)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    born: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, noticed], [], [])
        if noticed in ready:
            os.read(noticed, 4096)
            _reap(born)
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                _bear(json.loads(line), born)
    for pid in born:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _bear(order: Mapping[str, Any], born: set[int]) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(order, parent)
    born.add(pid)
    _tell({"pid": pid, "name": order["name"]})


def _reap(born: set[int]) -> None:
    while born:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        born.discard(pid)
        _tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _become(order: Mapping[str, Any], parent: int) -> None:
    _die_with(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, path in enumerate(order["streams"]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT
        os.dup2(os.open(path, flags, 0o600), number)
    random.seed()  # what was forked would else all jitter alike
    sys.argv = [order["module"], *order["arguments"]]
    code: Any = 1
    try:
        code = importlib.import_module(order["module"]).main() or 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as an interpreter ends; nothing of ours may go on in the nursery's loop
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _die_with(parent: int) -> None:
    """End with the nursery, however that ends. Only Linux can."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    serve()
