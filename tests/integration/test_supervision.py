"""What a supervisor sees of real processes: a file that is renewed, and the messages that systemd reads."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command import Regate, end, wait_until

SILENCE_S = 60.0


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket in the place of systemd's."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.settimeout(SILENCE_S)
        listening.bind(str(tmp_path / "notify"))
        yield listening


@pytest.mark.parametrize("arguments", [("worker",), ("up", "--no-web"), ("sweep", "--every", "1")], ids=" ".join)
def test_a_process_tells_of_its_life(tmp_path: Path, systemd: socket.socket, arguments: tuple[str, ...]) -> None:
    """Ready, alive over and over, stopping; the file is renewed meanwhile and gone afterwards."""
    beat = tmp_path / "beat"
    regate = Regate(tmp_path / "site", NOTIFY_SOCKET=str(tmp_path / "notify"), REGATE_BEAT_FILE=str(beat))
    with regate.process(*arguments) as started:
        assert b"READY=1" == systemd.recv(64)
        assert b"WATCHDOG=1" == systemd.recv(64)
        assert b"WATCHDOG=1" == systemd.recv(64)
        wait_until(beat.exists, "the first beat")
        os.utime(beat, (0, 0))
        wait_until(lambda: beat.stat().st_mtime > time.time() - SILENCE_S, "the next beat")
        assert 0 == end(started)
    assert not beat.exists()
    told = [systemd.recv(64)]
    while b"STOPPING=1" not in told:
        told.append(systemd.recv(64))
    assert {b"WATCHDOG=1", b"STOPPING=1"} == {*told, b"WATCHDOG=1"}


def test_a_beat_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    """In one line, before anything is driven."""
    regate = Regate(tmp_path / "site")
    done = regate("worker", "--json", "--beat-file", str(tmp_path / "nowhere" / "beat"), code=1)
    assert "start" == done.error["code"]
    assert "nowhere/beat cannot be written (FileNotFoundError)" in done.error["message"]
