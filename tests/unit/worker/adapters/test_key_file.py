"""The ring's file: replaced whole, kept for its owner, changed by one at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.command import ROOT
from worker.adapters.key_file import create_file, locked, replace_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    create_file(path, b"old")
    return path


def test_a_replaced_file_is_whole_private_and_alone(path: Path) -> None:
    replace_file(path, b"new")

    assert b"new" == path.read_bytes()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path] == list(path.parent.iterdir())


def test_what_is_not_there_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "keys.json", b"new")

    assert [] == list(tmp_path.iterdir())


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "linked" / "keys.json"
    link.parent.mkdir()
    link.symlink_to(path)

    with locked(link, 1.0):
        replace_file(link, b"new")

    assert link.is_symlink()
    assert b"new" == path.read_bytes()
    assert [link] == list(link.parent.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_the_file_to_its_owner(path: Path) -> None:
    os.chown(path, 54_321, -1)

    with locked(path, 1.0):
        replace_file(path, b"new")

    assert {54_321} == {found.stat().st_uid for found in path.parent.iterdir()}
    assert b"new" == path.read_bytes()


def test_one_changes_it_at_a_time(path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(path, 30.0):
            order.append("second")

    with locked(path, 1.0):
        thread = threading.Thread(target=second)
        thread.start()
        with pytest.raises(TimeoutError), locked(path, 0.2):
            order.append("never")
        order.append("first")
    thread.join()

    assert ["first", "second"] == order


def test_who_is_killed_gives_the_lock_back_and_leaves_nothing_half_written(path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path; from worker.adapters import key_file\n"
        f"path = Path({str(path)!r})\n"
        "with key_file.locked(path, 1.0):\n"
        "    Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    key_file.replace_file(path, b'new')\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert -9 == killed.returncode
    assert 3 == len(list(path.parent.iterdir()))

    with locked(path, 1.0):
        assert b"old" == path.read_bytes()

    assert {path.name, f".{path.name}.lock"} == {found.name for found in path.parent.iterdir()}
