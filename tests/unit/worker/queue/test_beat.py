"""The beat, with a real file and a real socket in the place of systemd's."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from worker.bootstrap import StartError
from worker.queue import beat as module
from worker.queue.beat import beating
from worker.telemetry import quiet

SOON_S = 10.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that listens where the environment says, as systemd's does."""
    address = str(tmp_path / "n") if request.param == "path" else f"@regate-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.setblocking(False)
        listening.bind(address.replace("@", "\0"))
        yield listening


async def heard(listening: socket.socket) -> str:
    async with asyncio.timeout(SOON_S):
        return (await asyncio.get_running_loop().sock_recv(listening, 4096)).decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - nothing tells of a file's time
            await asyncio.sleep(0.005)


def is_fresh(file: Path) -> bool:
    return file.exists() and file.stat().st_mtime > time.time() - 60


async def test_the_file_is_there_from_readiness_to_the_end(tmp_path: Path) -> None:
    """Its time is renewed, over and over, also after the process was asked to end."""
    file = tmp_path / "beat"
    async with beating(file, quiet) as beat:
        assert not file.exists()
        beat.ready()
        for _ in range(3):
            await until(lambda: is_fresh(file))
            os.utime(file, (0, 0))
        beat.draining()
        await until(lambda: is_fresh(file))
    assert not file.exists()


async def test_what_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    """A probe must not take it for a beat of this one."""
    file = tmp_path / "beat"
    file.touch()
    async with beating(file, quiet):
        assert not file.exists()


async def test_a_file_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    """Else the process would be ended for its silence, again and again."""
    with pytest.raises(StartError, match=r"beat file .*NotADirectoryError"):
        async with beating(Path(__file__) / "beat", quiet):
            pytest.fail("it started")


async def test_a_file_that_cannot_be_written_later_is_told_once(tmp_path: Path) -> None:
    """The process works on; whoever reads the file decides."""
    told: list[tuple[str, dict[str, Any]]] = []
    folder = tmp_path / "run"
    folder.mkdir()
    async with beating(folder / "beat", lambda event, fields: told.append((event, fields))) as beat:
        folder.rmdir()
        beat.ready()
        await until(lambda: bool(told))
        await asyncio.sleep(0.05)  # five more beats
        folder.mkdir()
        await until(lambda: is_fresh(folder / "beat"))
    assert [("beat.not_written", {"error": "FileNotFoundError"})] == told


async def test_systemd_hears_all_of_it(systemd: socket.socket) -> None:
    """Ready, then alive, then stopping, and alive until the end."""
    async with beating(None, quiet) as beat:
        beat.ready()
        assert ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] == [await heard(systemd) for _ in range(3)]
        beat.draining()
        while "STOPPING=1" != await heard(systemd):
            pass
        assert "WATCHDOG=1" == await heard(systemd)


async def test_a_loop_that_hangs_falls_silent(systemd: socket.socket) -> None:
    """No thread beats for it."""
    async with beating(None, quiet) as beat:
        beat.ready()
        assert "READY=1" == await heard(systemd)
        await heard(systemd)
        with pytest.raises(BlockingIOError):
            while True:
                systemd.recv(4096)

        time.sleep(0.1)  # noqa: ASYNC251 - this is how it hangs

        with pytest.raises(BlockingIOError):
            systemd.recv(4096)


async def test_nobody_needs_to_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where nobody is named, nor where nobody is any more."""
    for address in ("", str(tmp_path / "nobody"), "vsock:2:1"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        async with beating(None, quiet) as beat:
            beat.ready()
            beat.draining()
