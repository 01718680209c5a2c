"""The server that tests run on: it is there when asked for, and gone with its last user, however that one ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import BIN_VARIABLE, URL_VARIABLE, server

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
USER = """
import sys, tempfile, os
from pathlib import Path
from tests.support.postgres import server
found = server()
with found.clone() as url:
    print(Path(tempfile.gettempdir()) / f"regate-postgres-{os.getuid()}-{found.run}", flush=True)
    sys.stdin.read()
"""


@contextmanager
def user(run: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a process that uses the server of a test run; gives it with the server's folder."""
    environment = {name: value for name, value in os.environ.items() if name not in (URL_VARIABLE, BIN_VARIABLE)}
    process = subprocess.Popen(
        [sys.executable, "-c", USER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment | {"PYTEST_XDIST_TESTRUNUID": run},
    )
    assert process.stdout is not None
    try:
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def running(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ready.json").read_text())
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def test_it_outlives_one_user_and_ends_with_the_last() -> None:
    run = f"t{os.getpid()}a"
    with user(run) as (first, folder), user(run) as (second, same):
        assert folder == same
        pid = running(folder)["pid"]

        first.kill()
        first.wait()
        time.sleep(0.3)  # several looks of the keeper
        assert not gone(pid)

        second.communicate("")
        until(lambda: gone(pid))
        until(lambda: not folder.exists())


def test_it_ends_when_its_users_and_its_keeper_are_killed() -> None:
    with user(f"t{os.getpid()}b") as (process, folder):
        found = running(folder)

        os.kill(found["keeper"], signal.SIGKILL)

        until(lambda: gone(found["pid"]))
        process.kill()
    left = [folder, folder.with_name(f"{folder.name}.template")]
    subprocess.run(["rm", "-rf", *map(str, left)], check=True)  # nobody was left to do it


def test_a_clone_is_migrated_and_dropped_with_whoever_uses_it() -> None:
    found = server()
    with found.clone() as url:
        name = url.rsplit("/", 1)[1]
        assert 1 == len(found.execute("SELECT version FROM catalogue_version", database=name))

    assert [] == found.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")
