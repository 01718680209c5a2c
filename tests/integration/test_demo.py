"""The demonstration: it tells what happens, it notices when it does not, and it takes everything away again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.command import ROOT, first_line, wait_until
from tests.support.openai_server import Exchange, called, chunk, openai_server, streams, text
from worker.demo import stage
from worker.demo.__main__ import main


def environment(folder: Path) -> Mapping[str, str]:
    """Make everything temporary below `folder`."""
    return {**os.environ, "TMPDIR": str(folder)}


def processes_of(folder: Path) -> list[int]:
    """Find processes that work in a folder or were started with its name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place, command = str((entry / "cwd").readlink()), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if place.startswith(str(folder)) or os.fsencode(folder) in command:
            found.append(int(entry.name))
    return found


def test_the_story_is_true(tmp_path: Path) -> None:
    """It ends with 0 in under a minute, every step is checked, and nothing is left."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "worker.demo"],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr), done
    assert time.monotonic() - began < 120  # half of it on a machine that does nothing else
    assert "✗" not in done.stdout
    assert 16 == done.stdout.count("✓")
    assert 'snippet "incident-report" is secret_adjacent, above editor_content' in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
    assert [] == list(tmp_path.iterdir())
    wait_until(lambda: not processes_of(tmp_path), "all processes have ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: int) -> None:
    """In the middle of it, worker and broker running."""
    started = subprocess.Popen(
        [sys.executable, "-m", "worker.demo"],
        cwd=ROOT,
        env={**environment(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    try:
        while "the worker is process" not in first_line(started.stdout):
            assert started.poll() is None
        started.send_signal(number)
        rest, _ = started.communicate(timeout=60)
    finally:
        started.kill()
        started.stdout.close()
    assert 130 == started.returncode
    assert "Interrupted" in rest
    assert [] == list(tmp_path.iterdir())
    wait_until(lambda: not processes_of(tmp_path), "all processes have ended")


def test_what_is_not_as_told_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that asks for nothing spoils the story in the step that tells of it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(stage, "HOUSE_SCRIPT", 'record = "house.jsonl"\n[[reply]]\ntext = "no"\n')
    monkeypatch.setattr("worker.demo.story._WAIT_S", 3.0)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert 1 == main()
    finally:
        signal.signal(signal.SIGTERM, before)
    told = capfd.readouterr().out
    assert "Not as told, in step 3. The model wants to write somewhere" in told
    assert "it waits for approval" in told
    assert [] == list(tmp_path.iterdir())


async def test_a_real_model_is_asked_over_http(tmp_path: Path) -> None:
    """The story holds with a compatible server in the model's place; what it asks for afterwards is denied."""

    async def writes(exchange: Exchange) -> None:
        prompt = exchange.sent.body["messages"][0]["content"]
        url = prompt.split("the url ")[1].split(" ")[0]
        arguments = json.dumps({"url": url, "body": {"title": "db-7"}})
        await streams(called(0, id="c1", name="post_json", arguments=arguments), chunk({}, "tool_calls"))(exchange)

    async with openai_server() as server:
        server.will(writes, writes, streams(text("The ticket is open."), chunk({}, "stop")))
        done = await _told(
            tmp_path,
            REGATE_DEMO_BASE_URL=server.base_url,
            REGATE_DEMO_MODEL="some-model",
            REGATE_KEY_DEMO="marker-of-a-key",
        )

    assert (0, "") == (done.returncode, done.stderr), done
    assert "some-model is asked for real" in done.stdout
    assert "answer: The ticket is open." in done.stdout
    assert "$ regate deny" in done.stdout
    assert 16 == done.stdout.count("✓")
    assert "marker" not in done.stdout
    assert {"Bearer marker-of-a-key"} == {sent.header("authorization") for sent in server.sent}
    assert 3 == len(server.sent)


async def test_a_real_model_without_a_name_is_one_clear_sentence(tmp_path: Path) -> None:
    done = await _told(tmp_path, REGATE_DEMO_BASE_URL="http://127.0.0.1:1/v1")

    assert (1, "") == (done.returncode, done.stderr)
    assert "REGATE_DEMO_MODEL must name a model" in done.stdout


async def _told(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "worker.demo"],
        cwd=ROOT,
        env={**environment(folder), **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
